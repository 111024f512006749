/* Which modules the patterns of adapter_config.json mean, as PEFT has it: names are the last parts of a module's path, texts in place of
 * lists are regular expressions for the whole path. */
#pragma once

#include "base/json.h"

/* {expression: number} of rank_pattern or alpha_pattern. */
typedef struct PeftNumbers PeftNumbers;
/* file: for errors. ERR_INVALID: no object of numbers; ERR_UNSUPPORTED: an expression that can't be read. */
NODISCARD Status peft_numbers_open(const JsonValue *config, const char *file, const char *key, PeftNumbers **out);
/* The number of the first expression that means the end of the path from a dot on; *inout stays where none does. */
NODISCARD Status peft_numbers_find(const PeftNumbers *numbers, const char *module, double *inout);
void             peft_numbers_close(PeftNumbers *numbers); /* NULL is fine */
/* The same of numbers at this address, for SCOPED. */
static inline void peft_numbers_close_at(PeftNumbers **numbers)
{
    peft_numbers_close(*numbers);
}

/* target_modules, exclude_modules, layers_to_transform, layers_pattern. */
typedef struct PeftTargets PeftTargets;
NODISCARD Status           peft_targets_open(const JsonValue *config, const char *file, PeftTargets **out);
/* is_apart: "all-linear" leaves it out, as the output head. */
NODISCARD Status   peft_targets_have(const PeftTargets *targets, const char *module, bool is_apart, bool *out);
void               peft_targets_close(PeftTargets *targets); /* NULL is fine */
static inline void peft_targets_close_at(PeftTargets **targets)
{
    peft_targets_close(*targets);
}
