/* See few_steps.h. Packing is checked first: only it can turn hundreds of documents into one step. */
#include "train/few_steps.h"

#include "base/log.h"

enum { FEW_STEPS = 20 };

static const char *plural(int64_t count, const char *one, const char *more)
{
    return count == 1 ? one : more;
}

/* Whether packing by default leaves fewer sequences than documents. */
static bool packs(const Config *config, const LoaderStats *stats)
{
    return config->sample_packing && !config->origin[KEY_run_sample_packing] && stats->num_rows < stats->num_used;
}

static void tell_packing(const LoaderStats *stats, int64_t steps, int64_t per_step, StrBuf *notes)
{
    log_note(
        notes, true,
        "%lld %s: sample_packing, true unless set, puts %lld documents into %lld %s, and a step takes %lld; with sample_packing: false "
        "each has a sequence of its own",
        (long long)steps, plural(steps, "step", "steps"), (long long)stats->num_used, (long long)stats->num_rows,
        plural(stats->num_rows, "sequence", "sequences"), (long long)per_step);
}

/* Notes a key of the batch size that the run file leaves at its default. */
static void tell_key(const Config *config, const LoaderStats *stats, int64_t steps, int64_t per_step, StrBuf *notes)
{
    bool        accumulates = !config->origin[KEY_run_gradient_accumulation_steps];
    const char *key = accumulates ? "gradient_accumulation_steps" : "per_device_train_batch_size";
    int64_t     value = accumulates ? config->gradient_accumulation_steps : config->per_device_train_batch_size;
    if (value > 1 && (accumulates || !config->origin[KEY_run_per_device_train_batch_size]))
        log_note(notes, true,
                 "%lld %s: %s, %lld unless set, makes a step of %lld sequences, and there %s %lld; a smaller one makes more steps",
                 (long long)steps, plural(steps, "step", "steps"), key, (long long)value, (long long)per_step,
                 plural(stats->num_rows, "is", "are"), (long long)stats->num_rows);
}

void few_steps_tell(const Config *config, const Loader *train, int64_t steps, StrBuf *notes)
{
    const LoaderStats *stats = loader_stats(train);
    int64_t            per_step = loader_rows_per_step(train);
    bool               is_short = stats->num_rows < per_step && stats->num_used >= per_step;
    bool               is_few = config->max_steps <= 0 && steps < FEW_STEPS;
    if (packs(config, stats) && (is_short || is_few))
        tell_packing(stats, steps, per_step, notes);
    else if (is_few)
        tell_key(config, stats, steps, per_step, notes);
}
