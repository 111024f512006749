/* Which modules the patterns of adapter_config.json match, by PEFT's rules. Names are the last parts of a module's path. A text in place of
 * a list is a regular expression for the whole path. */
#pragma once

#include "base/json.h"

/* rank_pattern or alpha_pattern: {expression: number}. */
typedef struct PeftNumbers PeftNumbers;
/* file: its name, for messages. ERR_INVALID: the value isn't an object of numbers; ERR_UNSUPPORTED: an expression can't be compiled. */
NODISCARD Status peft_numbers_open(const JsonValue *config, const char *file, const char *key, PeftNumbers **out);
/* *inout: the number of the first expression that matches the path or its end after a dot. It stays unchanged if none matches. */
NODISCARD Status peft_numbers_find(const PeftNumbers *numbers, const char *module, double *inout);
void             peft_numbers_close(PeftNumbers *numbers); /* NULL is fine */
/* Closes *numbers, for SCOPED. */
static inline void peft_numbers_close_at(PeftNumbers **numbers)
{
    peft_numbers_close(*numbers);
}

/* target_modules, exclude_modules, layers_to_transform and layers_pattern, compiled. */
typedef struct PeftTargets PeftTargets;
NODISCARD Status           peft_targets_open(const JsonValue *config, const char *file, PeftTargets **out);
/* *out: whether `module` is a target. is_apart: "all-linear" leaves this module out, as it does the output head. */
NODISCARD Status   peft_targets_have(const PeftTargets *targets, const char *module, bool is_apart, bool *out);
void               peft_targets_close(PeftTargets *targets); /* NULL is fine */
static inline void peft_targets_close_at(PeftTargets **targets)
{
    peft_targets_close(*targets);
}
