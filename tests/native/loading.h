/* What the tests of jobs share: open, take all, check, end. */
#ifndef LOADING_H
#define LOADING_H

#include "runner.h"

typedef struct loading {
    cfac_model *model;
    cfac_plan *plan;
    cfac_job *job;
} loading;

/* size and, if 0, device of the options are filled in */
loading start_plan(const char *const *paths, size_t files, cfac_plan_options p, cfac_job_options o);
loading open_job(const char *path, uint64_t chunk_size, cfac_job_options o);
void end(loading l);
const cfac_tensor *tensor_at(loading l, uint32_t item);
void check_item(loading l, const cfac_result *r);
/* Take all, in file order, released at once or all held to the end. */
void take_all(loading l, bool hold);
/* Start, take until the job fails: its error. */
cfac_error start_and_fail(loading l);
cfac_counters counters(loading l);
void nap(long ms);
void write_many(const char *path, unsigned count); /* t0 …, 4000 bytes each */

/* A little of everything; 361,896 bytes. */
enum { TENSORS = 8 };
extern const spec tensors[TENSORS];

#endif
