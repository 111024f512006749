/* Shared by adamw and adamw_8bit, on CPU and CUDA: a step's scalars and the update of one element. */
#pragma once

#include "ir/op.h"
#include "ops/attrs.h"
#include "ops/random.h"

#include <math.h>

/* Scalars of a step, rounded to fp32 once for all elements. */
typedef struct AdamwScalars {
    float clip, beta1, beta2, rest1, rest2, decay, step_size, inv_sqrt_bias2, eps;
} AdamwScalars;

/* The factor that limits gradients with this squared norm to max_grad_norm; 1 if max_grad_norm is 0. */
PHILOX_FN float clip_factor(float norm2, double max_grad_norm)
{
    double clip = max_grad_norm > 0 ? max_grad_norm / (sqrt((double)norm2) + 1e-6) : 1;
    return (float)(clip < 1 ? clip : 1);
}

PHILOX_FN AdamwScalars adamw_scalars(const AdamwAttrs *attrs, float norm2, const float *hyper)
{
    AdamwScalars s;
    double       lr = (double)hyper[HYPER_LR];
    s.clip = clip_factor(norm2, attrs->max_grad_norm);
    s.beta1 = (float)attrs->beta1;
    s.beta2 = (float)attrs->beta2;
    s.rest1 = (float)(1 - attrs->beta1);
    s.rest2 = (float)(1 - attrs->beta2);
    s.decay = (float)(1 - lr * attrs->weight_decay);
    s.step_size = (float)(lr / (double)hyper[HYPER_BIAS1]);
    s.inv_sqrt_bias2 = (float)(1 / sqrt((double)hyper[HYPER_BIAS2]));
    s.eps = (float)attrs->eps;
    return s;
}

/* Updates one element. Each moment's sum is rounded once: fmaf fixes which product is fused, as compilers would choose differently from
 * place to place. */
PHILOX_FN void adamw_element(const AdamwScalars *s, float decay, float g, float *w, float *m, float *v)
{
    float grad = g * s->clip;
    *m = fmaf(s->beta1, *m, s->rest1 * grad);
    *v = fmaf(s->beta2, *v, s->rest2 * grad * grad);
    *w = *w * decay - s->step_size * *m / (sqrtf(*v) * s->inv_sqrt_bias2 + s->eps);
}
