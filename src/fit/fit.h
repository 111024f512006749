/* Whether a plan fits; settings that fit if it doesn't; the fastest settings that fit (memory: auto); plans as text. */
#pragma once

#include "setup/setup.h"

/* Simulated seconds of an optimizer step; 0: the device's rates aren't known. */
double fit_step_seconds(const Plan *plan, int64_t micro_steps);

/* Compares the plan with setup_memory_limit. If the plan doesn't fit, ERR_NO_FIT lists settings that fit, found by planning them on the
 * device. with_table: it also shows the plan. */
NODISCARD Status fit_check_memory(const Config *config, const HfModel *model, Device *device, const Plan *plan, bool with_table);

/* memory: auto: the fastest settings of the grid that fit, the chosen ones first. count 0: none fit; items[0].config then takes the least
 * memory. */
enum { MEMORY_CHOICES = 5 };
typedef struct MemoryChoice {
    Config  config; /* borrows from the config given to fit_search */
    int64_t bytes;
    double  seconds; /* seconds of an optimizer step, simulated */
} MemoryChoice;
typedef struct MemoryChoices {
    MemoryChoice items[MEMORY_CHOICES];
    int          count;
    int64_t      tokens; /* tokens of an optimizer step, over all ranks */
} MemoryChoices;
NODISCARD Status fit_search(const Config *config, const HfModel *model, Device *device, MemoryChoices *out);
/* These append the choices: fit_print_choices as a table, fit_write_choices as a JSON list of objects. */
void fit_print_choices(const MemoryChoices *choices, StrBuf *out);
void fit_write_choices(const MemoryChoices *choices, StrBuf *out);
/* *out: the settings to run with: the run file's or, with memory: auto, the chosen ones, made in `arena` and shown in a table on stderr.
 * comm: all ranks of the run call this, ranks_here of them on one host. Rank 0 searches, within the least memory that any rank has. */
NODISCARD Status fit_settle(Arena *arena, const Config *config, const HfModel *model, Device *device, Comm *comm, int ranks_here,
                            const Config **out);

/* Appends lines that say how the KV cache holds latents, each after `label`; nothing if no attention uses latents. */
void fit_print_latent(const PlanLatent *latent, const char *label, StrBuf *out);
/* Appends a table of the plan for people: regions, programs, parameters. */
void fit_print_plan(const Config *config, const Plan *plan, StrBuf *out);
