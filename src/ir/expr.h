/* Expressions over symbols, as JSON IR writes dims, conditions and attributes: numbers, names, name[index], sqrt log floor ceil(x), pow min
 * max(x, y), + - * / %, comparisons, && || !, c ? a : b, parentheses. All arithmetic is in double; dims must come out whole. */
#pragma once

#include "base/status.h"

/* Value of a name, or of entry *index of the list of that name. Errors say what is wrong with them. */
typedef Status (*ExprLookup)(const void *context, const char *name, const double *index, double *out);

/* ERR_INVALID quotes the expression, and says what is wrong with a name or where it can't be read. Only the side of ? that counts, and the
 * right of && and || where it counts, may name an entry that a list doesn't have. */
NODISCARD Status expr_eval(const char *text, ExprLookup lookup, const void *context, double *out);
