/* Whether a plan fits, what would where it doesn't, and the fastest settings that fit (memory: auto); the plan in words. */
#pragma once

#include "setup/setup.h"

/* Simulated seconds of an optimizer step; 0: the device's rates aren't known. */
double fit_step_seconds(const Plan *plan, int64_t micro_steps);

/* The plan against setup_memory_limit: ERR_NO_FIT with settings that fit, found by planning them on the device, and, with_table, the plan.
 */
NODISCARD Status fit_check_memory(const Config *config, const HfModel *model, Device *device, const Plan *plan, bool with_table);

/* memory: auto: the fastest settings of the grid that fit, the chosen one first. count 0: none fits; items[0].config is then what takes
 * least. */
enum { MEMORY_CHOICES = 5 };
typedef struct MemoryChoice {
    Config  config; /* borrows from the one that was searched for */
    int64_t bytes;
    double  seconds; /* of an optimizer step, simulated */
} MemoryChoice;
typedef struct MemoryChoices {
    MemoryChoice items[MEMORY_CHOICES];
    int          count;
    int64_t      tokens; /* of an optimizer step, of all ranks */
} MemoryChoices;
NODISCARD Status fit_search(const Config *config, const HfModel *model, Device *device, MemoryChoices *out);
/* A table of them, and the same as a list of JSON objects. */
void fit_print_choices(const MemoryChoices *choices, StrBuf *out);
void fit_write_choices(const MemoryChoices *choices, StrBuf *out);
/* The settings to run with: the run file's, or, with memory: auto, the chosen ones, made in `arena`; then a table on stderr tells of them.
 * comm: all ranks of the run call this, ranks_here of them on one host. Rank 0 searches, within what the poorest of them has. */
NODISCARD Status fit_settle(Arena *arena, const Config *config, const HfModel *model, Device *device, Comm *comm, int ranks_here,
                            const Config **out);

/* Lines of how the KV cache holds latents, each behind the label; none where there is no attention by latents. */
void fit_print_latent(const PlanLatent *latent, const char *label, StrBuf *out);
/* A table of the plan for people: regions, programs, parameters. */
void fit_print_plan(const Config *config, const Plan *plan, StrBuf *out);
