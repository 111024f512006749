/* Prints a dataset on stdout as training will see it. */
#pragma once

#include "data/inspect.h"

typedef struct InspectView {
    bool           json; /* a JSON line per row: {"ids": [...], "mask": [...], "row": i}; else coloured text, ids and figures for people */
    int64_t        rows; /* rows shown; -1: all. The figures always cover all rows */
    InspectPacking packing;
} InspectView;

NODISCARD Status inspect_view_print(const TokenizeJob *job, const InspectView *view);
