import os

def run():
    a = 1
    work()
    return a
