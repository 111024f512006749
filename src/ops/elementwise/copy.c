/* copy: copies x bit by bit to a value that may be in another memory space. Between host and device it uses the link, on a stream of its
 * own, concurrently with kernels. */
#include "ops/infer.h"

/* x (...) -> y of x's type; any dtype. */
static Status copy_infer(Node *node)
{
    node->out[0]->type = node->in[0]->type;
    return OK;
}

static Status copy_backward(GradBuilder *grad, const Node *node)
{
    return grad_add(grad, node->in[0], grad_of(grad, node->out[0]));
}

static OpCost copy_cost(const Node *node)
{
    return cost_streaming(node, 0);
}

enum { COPY_PER_TASK = 1 << 20 /* bytes */ };

static void copy_task(void *context, int64_t task, int worker)
{
    const KernelArgs *args = context;
    int64_t           at = task * COPY_PER_TASK, bytes = type_bytes(&args->out[0].type);
    (void)worker;
    memcpy((char *)args->out[0].data + at, (const char *)args->in[0].data + at, (size_t)min_i64(COPY_PER_TASK, bytes - at));
}

static Status copy_cpu(const KernelArgs *args)
{
    pool_run(args->pool, div_up(type_bytes(&args->out[0].type), COPY_PER_TASK), copy_task, (void *)args);
    return OK;
}

const OpDef op_copy = {
    .id = OP_COPY,
    .name = "copy",
    .synopsis = "y = x in other memory, of any dtype",
    .num_in = 1,
    .num_out = 1,
    .min_in = 1,
    .infer = copy_infer,
    .backward = copy_backward,
    .cost = copy_cost,
    .cpu = {{DT_SET_ANY, copy_cpu, "reference"}},
    .samples = "[9]\n"
               "[3,35,3333]\n",
    /* Floats, then codes. */
    .large = "[4096,1024]\n"
             "u8[1000003] below=256\n",
};
