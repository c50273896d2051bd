import fast; from tiny import other
@fast.compile()
def one_line(): return 1
