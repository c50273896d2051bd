"""Layouts from files: chunks, tensors, and the refinement that they allow (docs/tensors.md).

The paper's section 4.2 derives a refined model from a naive one: tensors are *split* into
pieces (tensor ∩ chunk), the pieces' reads *merged* into one per chunk, and the tensor's
last state *renamed* (``InGPU`` to ``Loaded``).  Here

- ``files`` says which files a model consists of (one, a folder, an index);
- ``chunkmap`` reads their headers with the C library and holds chunk.tensors,
  tensor.chunks and the pieces, without a Python object for each of them;
- ``derive`` makes the refined components from the naive one and ``refine:``;
- ``proof`` shows that this was legal and that the final states are the same;
- ``report`` tells requests, bytes and alignment before and after.

Only this package of the compiler uses the native library: there is one parser of headers.
"""
