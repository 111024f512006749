/* Recipes as a table of policy. */
#pragma once

#include "passes/compile.h"

/* One row of recipes.def. A dtype of DT_COUNT is open: the run file's own keys say it. */
typedef struct Recipe {
    const char *name;
    DType       forward, backward; /* as in PrecisionOptions */
} Recipe;

/* Recipe `index` in the order of the table; NULL: there are no more. */
const Recipe *recipe_at(int index);
/* NULL: there is none of that name. */
const Recipe *recipe_find(const char *name);

/* Whether some products read codes with scales, which must be measured before the first step. */
bool precision_is_scaled(const PrecisionOptions *options);
/* Whether forward products read codes of weights in place of the weights. */
bool precision_in_codes(const PrecisionOptions *options);
