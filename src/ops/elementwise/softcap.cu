/* softcap and softcap_bwd on CUDA. */
#include "ops/attrs.h"
#include "ops/map.cuh"

#include "ops/elementwise/functions.cuh"

static float cap_of(const KernelArgs *args)
{
    return (float)((const SoftcapAttrs *)args->attrs)->cap;
}

static Status softcap_run(const KernelArgs *args)
{
    return map_run(args, Softcap{cap_of(args)});
}

static Status softcap_bwd_run(const KernelArgs *args)
{
    return map_run(args, SoftcapBwd{cap_of(args)});
}

CUDA_KERNELS(softcap, {.dtypes = DT_SET_DECODE, .run = softcap_run, .name = "packs"})
CUDA_KERNELS(softcap_bwd, {.dtypes = DT_SET_FLOAT, .run = softcap_bwd_run, .name = "packs"})
