/* The CUDA plugin's kernels by op: each op's .cu defines its list; ops without one (views) have none. */
#include "device/cuda/kernel.h"

#define OP(id, name, signature) extern const CudaKernelList cuda_kernels_##name __attribute__((weak));
#include "ops/ops.def"
#undef OP

const CudaTableEntry cuda_kernel_table[] = {
#define OP(id, name, signature) {#name, &cuda_kernels_##name},
#include "ops/ops.def"
#undef OP
};
const int cuda_kernel_table_count = (int)(sizeof cuda_kernel_table / sizeof cuda_kernel_table[0]);
