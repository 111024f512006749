/* exp, log, sqrt, tanh, sigmoid, silu, log_sigmoid and the gradients of the last three on CUDA. */
#include "ops/map.cuh"

#include "ops/elementwise/functions.cuh"

#define UNARY_OF(set, op, F) \
    static Status op##_run(const KernelArgs *args) \
    { \
        return map_run(args, F()); \
    } \
    CUDA_KERNELS(op, {.dtypes = set, .run = op##_run, .name = "packs"})
#define UNARY(op, F) UNARY_OF(DT_SET_DECODE, op, F)
#define UNARY_BWD(op, F) UNARY_OF(DT_SET_FLOAT, op, F)

UNARY(exp, Exp)
UNARY(log, Log)
UNARY(sqrt, Sqrt)
UNARY(tanh, Tanh)
UNARY(sigmoid, Sigmoid)
UNARY(silu, Silu)
UNARY(log_sigmoid, LogSigmoid)
UNARY_BWD(sigmoid_bwd, SigmoidBwd)
UNARY_BWD(silu_bwd, SiluBwd)
UNARY_BWD(log_sigmoid_bwd, LogSigmoidBwd)
