/* Choosing among an op's kernels, and cutting a node by rows. */
#include "ir/op.h"

const KernelArgs *node_args(const Node *node, NodeArgs *storage)
{
    *storage = (NodeArgs){.args = {.in = storage->in,
                                   .out = storage->out,
                                   .num_in = node->num_in,
                                   .num_out = node->num_out,
                                   .attrs = node->attrs,
                                   .accumulate = node_accumulate_mask(node),
                                   .rows_alone = (node->flags & NODE_ROWS_ALONE) != 0}};
    for (int i = 0; i < node->num_in; i++)
        if (node->in[i]) storage->in[i].type = node->in[i]->type;
    for (int k = 0; k < node->num_out; k++)
        if (node->out[k]) storage->out[k].type = node->out[k]->type;
    return &storage->args;
}

static int widest_ndim(const Node *node)
{
    int ndim = 0;
    for (int k = 0; k < node->num_in; k++)
        if (node->in[k] && node->op->by_row >> k & 1 && node->in[k]->type.ndim > ndim) ndim = node->in[k]->type.ndim;
    for (int k = 0; k < node->num_out; k++)
        if (node->out[k] && node->out[k]->type.ndim > ndim) ndim = node->out[k]->type.ndim;
    return ndim;
}

/* Elements of each row if the product of the first 1 to `most` dims is `rows`; else 0. */
static int64_t row_elements(const TensorType *type, int64_t rows, int most)
{
    int64_t first = 1;
    for (int d = 0; d < most && d < type->ndim; d++) {
        first *= type->dim[d];
        if (first == rows) return type_numel(type) / rows;
    }
    return 0;
}

/* Whether an input is broadcast to all rows: it has one element, or its leading dims are all 1. */
static bool is_spread(const TensorType *type, const TensorType *y, int64_t rows)
{
    int64_t first = 1, own = 1;
    if (type_numel(type) == 1) return true;
    for (int d = 0; d < y->ndim && first < rows; d++) {
        first *= y->dim[d];
        own *= type->dim[d];
    }
    return type->ndim == y->ndim && own == 1;
}

bool op_cut(const Node *node, int64_t rows, int64_t in[NODE_MAX_IN], int64_t out[NODE_MAX_OUT])
{
    const OpDef *op = node->op;
    int          most = op->row_dims ? op->row_dims(node) : widest_ndim(node) - !op->by_element;
    bool         fits = op->by_row && node->out[0];
    for (int k = 0; k < node->num_out && fits; k++) {
        out[k] = node->out[k] ? row_elements(&node->out[k]->type, rows, most) : 0;
        fits = !node->out[k] || out[k];
    }
    for (int k = 0; k < node->num_in && fits; k++) {
        in[k] = node->in[k] && op->by_row >> k & 1 ? row_elements(&node->in[k]->type, rows, most) : 0;
        fits =
            !node->in[k] || !(op->by_row >> k & 1) || in[k] || (op->by_element && is_spread(&node->in[k]->type, &node->out[0]->type, rows));
    }
    return fits;
}

static bool operand_fits(const Value *value, DTypeSet dtypes, bool named)
{
    if (!value) return true;
    DTypeSet dtype = DT_SET(value->type.dtype), counters = DT_SET(DT_I32) | DT_SET(DT_I64);
    return (dtype & dtypes) || (!named && (dtype & counters));
}

bool op_types_fit(const Node *node, DTypeSet dtypes, const OperandTypes except[KERNEL_MAX_EXCEPT])
{
    DTypeSet in[NODE_MAX_IN], out[NODE_MAX_OUT];
    uint32_t named_in = 0, named_out = 0;
    for (int k = 0; k < NODE_MAX_IN; k++) in[k] = dtypes;
    for (int k = 0; k < NODE_MAX_OUT; k++) out[k] = dtypes;
    for (int e = 0; e < KERNEL_MAX_EXCEPT && (except[e].in || except[e].out); e++) {
        for (int k = 0; k < node->num_in; k++)
            if (except[e].in >> k & 1) in[k] = except[e].dtypes;
        for (int k = 0; k < node->num_out; k++)
            if (except[e].out >> k & 1) out[k] = except[e].dtypes;
        named_in |= except[e].in;
        named_out |= except[e].out;
    }
    bool fits = true;
    for (int k = 0; k < node->num_in; k++) fits = fits && operand_fits(node->in[k], in[k], named_in >> k & 1);
    for (int k = 0; k < node->num_out; k++) fits = fits && operand_fits(node->out[k], out[k], named_out >> k & 1);
    return fits;
}

const CpuKernel *op_cpu_kernel(const Node *node)
{
    for (int i = 0; i < OP_MAX_KERNELS && node->op->cpu[i].run; i++)
        if (op_types_fit(node, node->op->cpu[i].dtypes, node->op->cpu[i].except)) return &node->op->cpu[i];
    return NULL;
}

static void append_dtypes(StrBuf *text, Value *const *values, int count)
{
    for (int i = 0; i < count; i++)
        strbuf_printf(text, "%s%s", i ? ", " : "", values[i] ? dtype_info(values[i]->type.dtype)->name : "none");
}

Status op_no_kernel(const Node *node, const char *device)
{
    StrBuf text = {0};
    append_dtypes(&text, node->in, node->num_in);
    strbuf_puts(&text, " -> ");
    append_dtypes(&text, node->out, node->num_out);
    Status status = status_fail(ERR_UNSUPPORTED, "op %s has no %s kernel for %s", node->op->name, device, strbuf_cstr(&text));
    strbuf_deinit(&text);
    return status;
}
