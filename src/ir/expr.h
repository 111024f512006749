/* Expressions over symbols, as JSON IR writes dims, conditions and attributes: numbers, names, name[index], sqrt log floor ceil(x), pow
 * min max(x, y), + - * / %, comparisons, && || !, c ? a : b, parentheses. All arithmetic is in double; a dim must be a whole number. */
#pragma once

#include "base/status.h"

/* Looks up a name (index NULL), or entry *index of the list of that name. Its errors say what is wrong with the name or index. */
typedef Status (*ExprLookup)(const void *context, const char *name, const double *index, double *out);

/* ERR_INVALID quotes the expression and says which name is wrong or where it can't be read. An index out of range is no error in an
 * operand of ?:, && or || whose value isn't used. */
NODISCARD Status expr_eval(const char *text, ExprLookup lookup, const void *context, double *out);
