/* Choosing among an op's CPU kernels. */
#include "ir/op.h"

static bool fits(DTypeSet dtypes, const Value *value)
{
    if (!value || !dtype_info(value->type.dtype)->is_float) return true;
    return (DT_SET(value->type.dtype) & dtypes) != 0;
}

const CpuKernel *op_cpu_kernel(const Node *node)
{
    for (int i = 0; i < OP_MAX_KERNELS && node->op->cpu[i].run; i++) {
        const CpuKernel *kernel = &node->op->cpu[i];
        bool             all = true;
        for (int k = 0; k < node->num_in; k++) all = all && fits(kernel->dtypes, node->in[k]);
        for (int k = 0; k < node->num_out; k++) all = all && fits(kernel->dtypes, node->out[k]);
        if (all) return kernel;
    }
    return NULL;
}
