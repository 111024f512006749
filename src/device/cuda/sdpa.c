/* Attention as graphs of plain operations, which cuDNN's runtime engine compiles to one fused kernel (forward) or a few (backward).
 * Shapes are [B,H,T,D]; scores [B,H,T,T] are virtual, so they are never stored. The backward pass is deterministic: dQ is a plain
 * product. */
#include "device/cuda/sdpa.h"

#include "base/log.h"
#include "device/cuda/cuda.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if HAVE_CUDNN

enum { MAX_DESCRIPTORS = 192, MAX_OPS = 40, MAX_DATA = 20, MAX_CONFIGS = 8 };

/* Tensors in memory (not virtual); the value is cuDNN's unique id. */
typedef enum DataId {
    DATA_Q = 1,
    DATA_K,
    DATA_V,
    DATA_O,
    DATA_STATS,
    DATA_SCALE,
    DATA_MINUS_INF,
    DATA_ONE,
    DATA_GRAD_O,
    DATA_SUM,
    DATA_DQ,
    DATA_DK,
    DATA_DV,
    DATA_COUNT
} DataId;

typedef struct SdpaPlan {
    CudaSdpa                 key; /* with all pointers NULL */
    bool                     works;
    cudnnBackendDescriptor_t plan;
    size_t                   workspace_bytes;
    float                    scale, minus_inf, one; /* cuDNN reads scalar operands through host pointers */
    cudnnBackendDescriptor_t descriptors[MAX_DESCRIPTORS];
    int                      num_descriptors;
    cudnnBackendDescriptor_t ops[MAX_OPS];
    int                      num_ops;
    int64_t                  next_id;
    Status                   status; /* first failure while building */
} SdpaPlan;

struct CudaSdpaCache {
    SdpaPlan **plans;
    int        count;
};

typedef cudnnBackendDescriptor_t Desc;

static void check(SdpaPlan *p, CudaDevice *device, cudnnStatus_t status, const char *what)
{
    if (status == CUDNN_STATUS_SUCCESS || p->status != OK) return;
    p->status = status_fail(ERR_UNSUPPORTED, "cuDNN: %s: %s", what, device->lib.cudnnGetErrorString(status));
}

typedef struct Build {
    CudaDevice *device;
    SdpaPlan   *p;
} Build;

static Desc make(const Build *b, cudnnBackendDescriptorType_t type)
{
    Desc desc = NULL;
    check(b->p, b->device, b->device->lib.cudnnBackendCreateDescriptor(type, &desc), "create");
    CHECK(b->p->num_descriptors < MAX_DESCRIPTORS);
    return b->p->descriptors[b->p->num_descriptors++] = desc;
}

static void set(const Build *b, Desc desc, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                const void *values)
{
    if (b->p->status != OK) return;
    char what[48];
    snprintf(what, sizeof what, "attribute %d", (int)name);
    check(b->p, b->device, b->device->lib.cudnnBackendSetAttribute(desc, name, type, count, values), what);
}

static void set_desc(const Build *b, Desc desc, cudnnBackendAttributeName_t name, Desc value)
{
    set(b, desc, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finalize(const Build *b, Desc desc, const char *what)
{
    if (b->p->status == OK) check(b->p, b->device, b->device->lib.cudnnBackendFinalize(desc), what);
}

/* ---- tensors ---- */

typedef struct Shape {
    int64_t dim[4], stride[4];
} Shape;

static Shape packed(int64_t b, int64_t h, int64_t rows, int64_t cols)
{
    return (Shape){{b, h, rows, cols}, {h * rows * cols, rows * cols, cols, 1}};
}

/* id 0: a virtual tensor, without memory */
static Desc tensor(const Build *b, DataId id, cudnnDataType_t dtype, Shape shape)
{
    Desc    desc = make(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    int64_t uid = id ? (int64_t)id : b->p->next_id++, alignment = 16;
    bool    is_virtual = id == 0, by_value = id == DATA_SCALE || id == DATA_MINUS_INF || id == DATA_ONE;
    set(b, desc, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    set(b, desc, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &dtype);
    set(b, desc, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape.dim);
    set(b, desc, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, shape.stride);
    set(b, desc, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(b, desc, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    set(b, desc, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finalize(b, desc, "tensor");
    return desc;
}

static Desc scalar(const Build *b, DataId id)
{
    return tensor(b, id, CUDNN_DATA_FLOAT, packed(1, 1, 1, 1));
}

/* ---- operations ---- */

static Desc operation(const Build *b, cudnnBackendDescriptorType_t type)
{
    CHECK(b->p->num_ops < MAX_OPS);
    return b->p->ops[b->p->num_ops++] = make(b, type);
}

/* Adds y = mode(x, other) or, with `mask`, mask ? x : other. axis: for GEN_INDEX, else -1. other, mask NULL: absent. */
static void pointwise(const Build *b, cudnnPointwiseMode_t mode, cudnnDataType_t math, int64_t axis, Desc x, Desc other, Desc mask, Desc y)
{
    Desc kind = make(b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR), op;
    set(b, kind, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(b, kind, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &math);
    if (axis >= 0) set(b, kind, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finalize(b, kind, "pointwise");
    op = operation(b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_desc(b, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
    set_desc(b, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (other) set_desc(b, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, other);
    if (mask) set_desc(b, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, mask);
    set_desc(b, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    finalize(b, op, "pointwise operation");
}

static Desc apply(const Build *b, cudnnPointwiseMode_t mode, Desc x, Desc other, Shape shape)
{
    Desc y = tensor(b, 0, CUDNN_DATA_FLOAT, shape);
    pointwise(b, mode, CUDNN_DATA_FLOAT, -1, x, other, NULL, y);
    return y;
}

static void reduce_into(const Build *b, cudnnReduceTensorOp_t operator_, Desc x, Desc y)
{
    Desc            kind = make(b, CUDNN_BACKEND_REDUCTION_DESCRIPTOR), op;
    cudnnDataType_t math = CUDNN_DATA_FLOAT;
    set(b, kind, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &operator_);
    set(b, kind, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &math);
    finalize(b, kind, "reduction");
    op = operation(b, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_desc(b, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_desc(b, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    set_desc(b, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind);
    finalize(b, op, "reduction operation");
}

static Desc reduce(const Build *b, cudnnReduceTensorOp_t operator_, Desc x, Shape shape)
{
    Desc y = tensor(b, 0, CUDNN_DATA_FLOAT, shape);
    reduce_into(b, operator_, x, y);
    return y;
}

static void multiply_into(const Build *b, Desc x, Desc y, Desc z)
{
    Desc            kind = make(b, CUDNN_BACKEND_MATMUL_DESCRIPTOR), op;
    cudnnDataType_t math = CUDNN_DATA_FLOAT;
    set(b, kind, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &math);
    finalize(b, kind, "product");
    op = operation(b, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_desc(b, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, x);
    set_desc(b, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, y);
    set_desc(b, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, z);
    set_desc(b, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, kind);
    finalize(b, op, "product operation");
}

static Desc multiply(const Build *b, Desc x, Desc y, Shape shape)
{
    Desc z = tensor(b, 0, CUDNN_DATA_FLOAT, shape);
    multiply_into(b, x, y, z);
    return z;
}

/* x with another shape; used to transpose the last two dims. */
static Desc reshape(const Build *b, Desc x, cudnnDataType_t dtype, Shape shape)
{
    Desc y = tensor(b, 0, dtype, shape), op = operation(b, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_desc(b, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_desc(b, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    finalize(b, op, "reshape");
    return y;
}

/* x if row >= column, else -inf. */
static Desc causal(const Build *b, Desc x, Shape scores)
{
    Desc index[2], mask = tensor(b, 0, CUDNN_DATA_BOOLEAN, scores), y = tensor(b, 0, CUDNN_DATA_FLOAT, scores);
    for (int axis = 2; axis < 4; axis++) {
        index[axis - 2] = tensor(b, 0, CUDNN_DATA_INT32, scores);
        pointwise(b, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, axis, x, NULL, NULL, index[axis - 2]);
    }
    pointwise(b, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, -1, index[0], index[1], NULL, mask);
    pointwise(b, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, x, scalar(b, DATA_MINUS_INF), mask, y);
    return y;
}

static Shape strided(int64_t b, int64_t h, int64_t t, int64_t d, int64_t token_stride)
{
    return (Shape){{b, h, t, d}, {t * token_stride, d, token_stride, 1}};
}

static Shape transposed(Shape s)
{
    return (Shape){{s.dim[0], s.dim[1], s.dim[3], s.dim[2]}, {s.stride[0], s.stride[1], s.stride[3], s.stride[2]}};
}

typedef struct Shapes {
    Shape q, kv, o, scores, rows, heads; /* rows: [B,H,T,1]; heads: dense [B,H,T,D] */
} Shapes;

static Shapes shapes_of(const CudaSdpa *s)
{
    return (Shapes){
        .q = strided(s->batch, s->num_heads, s->len, s->dim, s->q_stride),
        .kv = strided(s->batch, s->num_kv_heads, s->len, s->dim, s->kv_stride),
        .o = strided(s->batch, s->num_heads, s->len, s->dim, s->num_heads * s->dim),
        .scores = packed(s->batch, s->num_heads, s->len, s->len),
        .rows = packed(s->batch, s->num_heads, s->len, 1),
        .heads = packed(s->batch, s->num_heads, s->len, s->dim),
    };
}

static void build_forward(const Build *b, const CudaSdpa *s)
{
    const cudnnDataType_t bf16 = CUDNN_DATA_BFLOAT16, f32 = CUDNN_DATA_FLOAT;
    Shapes                n = shapes_of(s);
    Desc q = tensor(b, DATA_Q, bf16, n.q), k = tensor(b, DATA_K, bf16, transposed(n.kv)), v = tensor(b, DATA_V, bf16, n.kv);
    Desc o = tensor(b, DATA_O, bf16, n.o), stats = tensor(b, DATA_STATS, f32, n.rows), p = tensor(b, 0, bf16, n.scores);
    Desc scores = multiply(b, q, k, n.scores);
    scores = apply(b, CUDNN_POINTWISE_MUL, scores, scalar(b, DATA_SCALE), n.scores);
    scores = causal(b, scores, n.scores);
    Desc most = reduce(b, CUDNN_REDUCE_TENSOR_MAX, scores, n.rows);
    Desc e = apply(b, CUDNN_POINTWISE_EXP, apply(b, CUDNN_POINTWISE_SUB, scores, most, n.scores), NULL, n.scores);
    Desc total = reduce(b, CUDNN_REDUCE_TENSOR_ADD, e, n.rows);
    Desc log_total = apply(b, CUDNN_POINTWISE_LOG, total, NULL, n.rows);
    pointwise(b, CUDNN_POINTWISE_ADD, f32, -1, most, log_total, NULL, stats);
    pointwise(b, CUDNN_POINTWISE_DIV, f32, -1, e, total, NULL, p);
    multiply_into(b, p, v, o);
}

/* Gradient of keys or values: computed per query head, then summed over the heads of a group. */
static void group_gradient(const Build *b, const CudaSdpa *s, const Shapes *n, Desc x, Desc y, Desc out)
{
    if (s->num_heads == s->num_kv_heads) {
        multiply_into(b, x, y, out);
        return;
    }
    Desc full = tensor(b, 0, CUDNN_DATA_BFLOAT16, n->heads);
    multiply_into(b, x, y, full);
    reduce_into(b, CUDNN_REDUCE_TENSOR_ADD, full, out);
}

static void build_backward(const Build *b, const CudaSdpa *s)
{
    const cudnnDataType_t bf16 = CUDNN_DATA_BFLOAT16, f32 = CUDNN_DATA_FLOAT;
    Shapes                n = shapes_of(s);
    Shape                 dq_shape = strided(s->batch, s->num_heads, s->len, s->dim, s->dq_stride);
    Shape                 dkv_shape = strided(s->batch, s->num_kv_heads, s->len, s->dim, s->dkv_stride);
    Desc q = tensor(b, DATA_Q, bf16, n.q), k = tensor(b, DATA_K, bf16, transposed(n.kv)), v = tensor(b, DATA_V, bf16, transposed(n.kv));
    Desc o = tensor(b, DATA_O, bf16, n.o), grad_o = tensor(b, DATA_GRAD_O, bf16, n.o), stats = tensor(b, DATA_STATS, f32, n.rows);
    Desc sum = tensor(b, DATA_SUM, f32, n.rows), scale = scalar(b, DATA_SCALE);
    Desc dq = tensor(b, DATA_DQ, bf16, dq_shape), dk = tensor(b, DATA_DK, bf16, dkv_shape), dv = tensor(b, DATA_DV, bf16, dkv_shape);
    Desc products = apply(b, CUDNN_POINTWISE_MUL, grad_o, o, n.heads);
    pointwise(b, CUDNN_POINTWISE_MUL, f32, -1, reduce(b, CUDNN_REDUCE_TENSOR_ADD, products, n.rows), scalar(b, DATA_ONE), NULL, sum);
    Desc scores = apply(b, CUDNN_POINTWISE_MUL, multiply(b, q, k, n.scores), scale, n.scores);
    scores = causal(b, apply(b, CUDNN_POINTWISE_SUB, scores, stats, n.scores), n.scores);
    Desc p = apply(b, CUDNN_POINTWISE_EXP, scores, NULL, n.scores);
    group_gradient(b, s, &n, reshape(b, p, bf16, transposed(n.scores)), grad_o, dv);
    Desc ds = apply(b, CUDNN_POINTWISE_SUB, multiply(b, grad_o, v, n.scores), sum, n.scores);
    ds = apply(b, CUDNN_POINTWISE_MUL, apply(b, CUDNN_POINTWISE_MUL, ds, p, n.scores), scale, n.scores);
    group_gradient(b, s, &n, reshape(b, ds, bf16, transposed(n.scores)), q, dk);
    multiply_into(b, ds, reshape(b, k, f32, n.kv), dq);
}

/* ---- plans ---- */

static Desc graph_of(const Build *b, cudnnHandle_t handle)
{
    Desc graph = make(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, b->p->num_ops, b->p->ops);
    set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    finalize(b, graph, "graph");
    return graph;
}

/* Takes the first of the heuristic's configurations that compiles. */
static void choose(const Build *b, cudnnHandle_t handle)
{
    CudaLibraries         *lib = &b->device->lib;
    Desc                   graph = graph_of(b, handle), heuristic = make(b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR), configs[MAX_CONFIGS];
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t                count = 0;
    set_desc(b, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(b, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finalize(b, heuristic, "heuristic");
    for (int i = 0; i < MAX_CONFIGS; i++) configs[i] = make(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (b->p->status != OK) return;
    check(b->p, b->device,
          lib->cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_CONFIGS, &count,
                                        configs),
          "heuristic results");
    for (int64_t i = 0; i < count && b->p->status == OK; i++) {
        Desc    plan = make(b, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
        int64_t bytes = 0, got;
        set(b, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
        set_desc(b, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configs[i]);
        if (b->p->status != OK || lib->cudnnBackendFinalize(plan) != CUDNN_STATUS_SUCCESS) continue;
        check(b->p, b->device,
              lib->cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &got, &bytes),
              "workspace size");
        b->p->plan = plan;
        b->p->workspace_bytes = ((size_t)bytes + 255) / 256 * 256;
        b->p->works = b->p->status == OK;
        return;
    }
}

static CudaSdpa key_of(const CudaSdpa *s)
{
    CudaSdpa key = *s;
    key.q = key.k = key.v = key.grad_o = NULL;
    key.o = key.dq = key.dk = key.dv = NULL;
    key.lse = NULL;
    return key;
}

static bool same_key(const CudaSdpa *a, const CudaSdpa *b)
{
    return a->batch == b->batch && a->len == b->len && a->num_heads == b->num_heads && a->num_kv_heads == b->num_kv_heads &&
           a->dim == b->dim && a->q_stride == b->q_stride && a->kv_stride == b->kv_stride && a->dq_stride == b->dq_stride &&
           a->dkv_stride == b->dkv_stride && a->scale == b->scale && a->backward == b->backward;
}

static SdpaPlan *plan_of(CudaDevice *device, const CudaSdpa *s)
{
    CudaSdpaCache *cache = device->sdpa ? device->sdpa : (device->sdpa = calloc(1, sizeof *cache));
    CudaSdpa       key = key_of(s);
    if (!cache) fatal_out_of_memory(sizeof *cache);
    for (int i = 0; i < cache->count; i++)
        if (same_key(&cache->plans[i]->key, &key)) return cache->plans[i];
    SdpaPlan *p = calloc(1, sizeof *p);
    cache->plans = realloc(cache->plans, (size_t)(cache->count + 1) * sizeof *cache->plans);
    if (!p || !cache->plans) fatal_out_of_memory(sizeof *p);
    cache->plans[cache->count++] = p;
    *p = (SdpaPlan){.key = key, .scale = s->scale, .minus_inf = -INFINITY, .one = 1.0f, .next_id = 1000};
    cudnnHandle_t handle = cuda_cudnn_handle(&device->lib);
    if (!handle) return p;
    Build b = {device, p};
    if (s->backward)
        build_backward(&b, s);
    else
        build_forward(&b, s);
    if (p->status == OK) choose(&b, handle);
    if (!p->works)
        log_info("cuDNN has no plan for attention of %lld x %lld (%s); our own kernel is used", (long long)s->len, (long long)s->dim,
                 p->status == OK ? "no configuration compiles" : status_message());
    return p;
}

/* cuDNN 9.10.0 and 9.10.1 have known bugs; before 9.16 the backward pass is wrong if rows aren't whole blocks of 128. */
bool cuda_sdpa_supported(CudaDevice *device, const CudaSdpa *s)
{
    size_t version = device->lib.cudnn_version;
    bool   dim = s->dim == 64 || s->dim == 128 || (s->dim == 256 && device->sm == 90);
    if (version < 91002 || device->sm < 80 || !dim || s->len % 128 != 0) return false;
    return plan_of(device, s)->works;
}

static size_t sum_bytes(const CudaSdpa *s)
{
    return s->backward ? ((size_t)(s->batch * s->num_heads * s->len) * sizeof(float) + 255) / 256 * 256 : 0;
}

size_t cuda_sdpa_workspace(CudaDevice *device, const CudaSdpa *s)
{
    return plan_of(device, s)->workspace_bytes + sum_bytes(s);
}

Status cuda_sdpa_run(CudaDevice *device, const CudaSdpa *s, void *workspace, void *stream)
{
    CudaLibraries *lib = &device->lib;
    SdpaPlan      *p = plan_of(device, s);
    int64_t        ids[MAX_DATA];
    void          *data[MAX_DATA];
    int            count = 0;
    FAIL_IF(!p->works, ERR_INTERNAL, "cuDNN: attention without a plan");
    const struct {
        DataId      id;
        const void *data;
        bool        backward_only;
    } all[] = {{DATA_Q, s->q, false},
               {DATA_K, s->k, false},
               {DATA_V, s->v, false},
               {DATA_O, s->o, false},
               {DATA_STATS, s->lse, false},
               {DATA_SCALE, &p->scale, false},
               {DATA_MINUS_INF, &p->minus_inf, false},
               {DATA_ONE, &p->one, true},
               {DATA_GRAD_O, s->grad_o, true},
               {DATA_SUM, workspace, true},
               {DATA_DQ, s->dq, true},
               {DATA_DK, s->dk, true},
               {DATA_DV, s->dv, true}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i].backward_only && !s->backward) continue;
        ids[count] = all[i].id;
        memcpy(&data[count++], &all[i].data, sizeof(void *));
    }
    void                    *scratch = (char *)workspace + sum_bytes(s);
    cudnnBackendDescriptor_t pack;
    cudnnStatus_t            status = lib->cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (status == CUDNN_STATUS_SUCCESS) {
        status = lib->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids);
        if (status == CUDNN_STATUS_SUCCESS)
            status = lib->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, data);
        if (status == CUDNN_STATUS_SUCCESS)
            status = lib->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &scratch);
        if (status == CUDNN_STATUS_SUCCESS) status = lib->cudnnBackendFinalize(pack);
        if (status == CUDNN_STATUS_SUCCESS) status = lib->cudnnSetStream(lib->dnn, (cudaStream_t)stream);
        if (status == CUDNN_STATUS_SUCCESS) status = lib->cudnnBackendExecute(lib->dnn, p->plan, pack);
        lib->cudnnBackendDestroyDescriptor(pack);
    }
    FAIL_IF(status != CUDNN_STATUS_SUCCESS, ERR_DEVICE, "cuDNN: attention: %s", lib->cudnnGetErrorString(status));
    return OK;
}

void cuda_sdpa_close(CudaDevice *device)
{
    CudaSdpaCache *cache = device->sdpa;
    if (!cache) return;
    for (int i = 0; i < cache->count; i++) {
        SdpaPlan *p = cache->plans[i];
        while (p->num_descriptors > 0)
            if (p->descriptors[--p->num_descriptors]) device->lib.cudnnBackendDestroyDescriptor(p->descriptors[p->num_descriptors]);
        free(p);
    }
    free(cache->plans);
    free(cache);
    device->sdpa = NULL;
}

#else

bool cuda_sdpa_supported(CudaDevice *device, const CudaSdpa *sdpa)
{
    (void)device;
    (void)sdpa;
    return false;
}

size_t cuda_sdpa_workspace(CudaDevice *device, const CudaSdpa *sdpa)
{
    (void)device;
    (void)sdpa;
    return 0;
}

Status cuda_sdpa_run(CudaDevice *device, const CudaSdpa *sdpa, void *workspace, void *stream)
{
    (void)device;
    (void)sdpa;
    (void)workspace;
    (void)stream;
    FAIL(ERR_UNSUPPORTED, "this build has no cuDNN");
}

void cuda_sdpa_close(CudaDevice *device)
{
    (void)device;
}

#endif
