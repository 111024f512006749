/* See schedule.h, which gives the formulas. */
#include "train/schedule.h"

#include <math.h>

Status schedule_make(const Config *config, int64_t total_steps, Schedule *out)
{
    *out = (Schedule){
        .shape = config->lr_scheduler_type,
        .peak = config->learning_rate,
        .final_fraction = config->final_lr_fraction,
        .total = total_steps,
        .warmup = config->warmup_steps > 0 ? config->warmup_steps : (int64_t)ceil(config->warmup_ratio * (double)total_steps),
        .cooldown = config->cooldown_steps,
    };
    if (config->lr_scheduler_type == OPT_LR_LINEAR || config->lr_scheduler_type == OPT_LR_COSINE) out->cooldown = 0;
    FAIL_IF(out->warmup > total_steps || out->cooldown > total_steps - out->warmup, ERR_INVALID,
            "warm-up takes %lld steps and cooldown %lld, the whole run has %lld; lower warmup_steps, warmup_ratio or cooldown_steps",
            (long long)out->warmup, (long long)out->cooldown, (long long)total_steps);
    return OK;
}

double schedule_lr(const Schedule *s, int64_t step)
{
    if (step < s->warmup) return s->peak * (double)(step + 1) / (double)(s->warmup + 1);
    double f = s->final_fraction, span = (double)(s->total - s->warmup);
    double p = span > 0 ? fmin((double)(step - s->warmup) / span, 1.0) : 1.0;
    if (s->shape == OPT_LR_LINEAR) return s->peak * (1.0 - p * (1.0 - f));
    if (s->shape == OPT_LR_COSINE) return s->peak * (f + (1.0 - f) * 0.5 * (1.0 + cos(3.14159265358979323846 * p)));
    int64_t left = s->total - step; /* steps to go, including this one */
    if (left >= s->cooldown || s->cooldown == 0) return s->peak;
    return s->peak * (f + (1.0 - f) * (double)left / (double)s->cooldown);
}
