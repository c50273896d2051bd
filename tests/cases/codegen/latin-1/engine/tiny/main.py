#!/usr/bin/env python
# -*- coding: latin-1 -*-
"""Café."""
import os

def run():
    x = "é"; work()
    y = "éé" + other("ü")
    return os, x, y
