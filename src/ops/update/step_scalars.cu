/* step_scalars on CUDA: one thread. */
#include "ops/rows.cuh"
#include "ops/update/step_scalars.h"

typedef struct StepArgs {
    StepScalarsAttrs attrs;
    TensorView       in[STEP_IN_COUNT + 1], out[STEP_OUT_APPLIED + 1];
} StepArgs;

static __global__ void step_scalars_one(StepArgs args)
{
    step_scalars(&args.attrs, args.in, args.out);
}

static Status step_scalars_run(const KernelArgs *args)
{
    StepArgs step = {*(const StepScalarsAttrs *)args->attrs, {}, {}};
    memcpy(step.in, args->in, sizeof step.in);
    memcpy(step.out, args->out, sizeof step.out);
    step_scalars_one<<<1, 1, 0, cuda_stream(args)>>>(step);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(step_scalars, {.dtypes = DT_SET_FLOAT, .run = step_scalars_run, .name = "thread"})
