/* Expressions over symbols, as JSON IR writes dims, conditions and attributes: numbers, names, + - * / %, comparisons,
 * && || !, c ? a : b, parentheses. All arithmetic is in double; dims must come out whole. */
#pragma once

#include "base/status.h"

/* Value of a name; false: unknown. */
typedef bool (*ExprLookup)(const void *context, const char *name, double *out);

/* ERR_INVALID quotes the expression and the unknown name or the place where it can't be read. */
NODISCARD Status expr_eval(const char *text, ExprLookup lookup, const void *context, double *out);
