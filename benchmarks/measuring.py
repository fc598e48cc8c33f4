"""What benchmarks share: clocks, tables of results, and the choice of parts."""

import argparse
import os
import time

import numpy as np
import torch

import sklearn_mpt


def seconds(function, *args):
    """Return the wall time of one call, and what it returned."""
    start = time.perf_counter()
    result = function(*args)
    return time.perf_counter() - start, result


def processor_seconds(function, *args):
    """Return the processor time of one call, and what it returned."""
    start = time.process_time()
    result = function(*args)
    return time.process_time() - start, result


def fastest(functions, repeats):
    """Call the functions in turn; return the fastest time and last result of each."""
    rounds = [[seconds(function) for function in functions] for _ in range(repeats)]
    times = np.min([[run[0] for run in turn] for turn in rounds], axis=0)
    return times, [result for _, result in rounds[-1]]


def print_table(title, header, rows):
    """Print rows of strings under a header "a|b", in right-aligned columns."""
    lines = [header.split("|"), *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print(f"\n{title}")
    for line in lines:
        print("  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)))
    print(flush=True)


def parser_of(doc):
    """Return a parser of the command line, described by the first line of a module."""
    return argparse.ArgumentParser(description=doc.splitlines()[0])


def parse_parts(parser, parts):
    """Parse the command line, which names some of the parts; without names, all."""
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(parts)}; default all")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(parts)
    if unknown:
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}")
    arguments.parts = arguments.parts or list(parts)
    return arguments


def print_machine(*packages):
    """Print versions of the package, of torch and of other modules, and the machine."""
    versions = [
        f"{m.__name__} {m.__version__}" for m in (sklearn_mpt, torch, *packages)
    ]
    print(
        f"{', '.join(versions)}, {os.cpu_count()} cores, "
        f"{torch.get_num_threads()} thread(s), load {os.getloadavg()[0]:.1f}"
    )
