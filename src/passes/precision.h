/* Recipes: a table of named choices of precision. */
#pragma once

#include "passes/compile.h"

/* One row of recipes.def. DT_COUNT: the run file's own keys choose the dtype. */
typedef struct Recipe {
    const char *name;
    DType       forward, backward; /* dtypes as in PrecisionOptions */
} Recipe;

/* Recipe `index` in the order of the table; NULL: there are no more. */
const Recipe *recipe_at(int index);
/* The recipe of this name; NULL: none. */
const Recipe *recipe_find(const char *name);

/* Whether some products read codes whose scales must be measured before the first step. */
bool precision_is_scaled(const PrecisionOptions *options);
/* Whether forward products read codes of weights instead of the weights. */
bool precision_in_codes(const PrecisionOptions *options);
