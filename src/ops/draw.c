#include "ops/draw.h"

#include "base/philox.h"
#include "ops/attrs.h"
#include "ops/lowbit/fp8.h"

#include <math.h>

/* Stores element i of a tensor in a float format of whole bytes. */
static void set_number(void *data, DType dtype, int64_t i, float value)
{
    dtype_encode(dtype, &value, 1, (char *)data + dtype_bytes(dtype, i));
}

static float get_number(const void *data, DType dtype, int64_t i)
{
    float value;
    dtype_decode(dtype, (const char *)data + dtype_bytes(dtype, i), 1, &value);
    return value;
}

static void draw_plain(const TensorType *type, int range, uint64_t key, void *data)
{
    if (dtype_info(type->dtype)->block > 1) { /* all bits are valid codes */
        TensorType bytes = type_make(DT_U8, 1, type_bytes(type));
        draw_plain(&bytes, 256, key, data);
        return;
    }
    for (int64_t i = 0, n = type_numel(type); i < n; i++) {
        Philox4 word = philox4x32((uint32_t)i, 0, 0, 0, key);
        int     whole = range > 0 ? (int)(word.v[2] % (uint32_t)range) : 0;
        double  u = ((double)word.v[0] + 0.5) / 4294967296.0, phase = (double)word.v[1] / 4294967296.0;
        if (type->dtype == DT_I64)
            ((int64_t *)data)[i] = whole;
        else if (type->dtype == DT_I32)
            ((int32_t *)data)[i] = whole;
        else if (type->dtype == DT_U8)
            ((uint8_t *)data)[i] = (uint8_t)whole;
        else
            set_number(data, type->dtype, i, (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * phase)));
    }
}

/* Turns the numbers of each row into the scale of a tensor. */
static void draw_scales(float (*rows)[FP8_SCALE_FLOATS], int64_t count)
{
    for (int64_t i = 0; i < count; i++) fp8_scale_set(rows[i], fabsf(rows[i][0]) + 0.5f);
}

/* Documents of growing lengths; with `dense`, which kernels may rely on, one document a row. */
static void draw_documents(const Node *node, const TensorType *type, int32_t *data)
{
    bool dense = ((const AttentionAttrs *)node->attrs)->dense;
    for (int64_t b = 0; b < type->dim[0]; b++)
        for (int32_t t = 0, start = 0, len = (int32_t)b + 3, more = type->dim[1] < 200 ? 5 : 41; t < type->dim[1]; t++) {
            if (!dense && t - start == len) start = t, len += more;
            data[b * type->dim[1] + t] = start;
        }
}

/* Segments of one size with a gap after each but the last. */
static void draw_segments(const Node *node, const TensorType *type, int64_t (*rows)[SEGMENT_COLUMNS])
{
    for (int64_t s = 0, n = type->dim[0], each = type_numel(&node->in[0]->type) / n; s < n; s++) {
        int64_t row[SEGMENT_COLUMNS] = {s * each, s + 1 < n ? each - 3 : each, s & 1, 100 + s, 8 * s};
        memcpy(rows[s], row, sizeof row);
    }
}

/* Controls for greedy sampling, single filters, all filters together. */
static void draw_controls(float (*rows)[SAMPLE_CONTROLS], int64_t count)
{
    static const float kinds[][SAMPLE_CONTROLS] = {
        {0.8f, 50, 0.9f, 0, 1},
        {0, 0, 1, 0, 1},
        {1, 0, 1, 0, 1},
        {1.3f, 0, 0.95f, 0, 1.2f, 0.5f, 0.3f},
        {0.7f, 0, 1, 0.05f, 1},
        {1, 20, 1, 0, 1, 0, 0.1f},
        {0, 0, 1, 0, 1.3f, 0.2f, 0},
        {2, 0, 0.999f, 0, 1},
        {1, 0, 0.3f, 0.001f, 1},
        {0.6f, 7, 0.5f, 0.1f, 0.8f},
    };
    for (int64_t b = 0; b < count; b++) {
        memcpy(rows[b], kinds[b % (int64_t)(sizeof kinds / sizeof kinds[0])], sizeof kinds[0]);
        rows[b][SAMPLE_GUIDED] = b % 3 != 2;
    }
}

/* Slots downwards from the last; the second row has none. */
static void draw_slots(int32_t *slots, int64_t count, int range)
{
    for (int64_t b = 0; b < count; b++) slots[b] = b == 1 ? -1 : range - 1 - (int32_t)b;
}

/* A third of the tokens are unseen, a third are in the prompt, a third in the generated text. */
static void draw_seen(int32_t *seen, int64_t count)
{
    for (int64_t i = 0; i < count; i++) seen[i] = seen[i] % 3 == 0 ? 0 : seen[i] % 3 == 1 ? INT32_MIN | seen[i] / 6 : seen[i];
}

float op_draw_held(InputHolds holds, float drawn)
{
    switch (holds) {
    case HOLDS_SQUARES:
        return fabsf(drawn);
    case HOLDS_POSITIVE:
        return fabsf(drawn) + 0.5f;
    case HOLDS_MASK:
        return drawn > 0;
    case HOLDS_WHOLE:
        return roundf(drawn);
    case HOLDS_HALF:
        return roundf(2 * drawn) + 0.5f;
    default:
        return drawn;
    }
}

void op_draw(const Node *node, int k, int range, uint64_t key, void *data)
{
    static const float hyper[HYPER_COUNT] = {1e-2f, 0.25f, 0.271f, 0.142625f};
    const TensorType  *type = &node->in[k]->type;
    int64_t            numel = type_numel(type);
    draw_plain(type, range, key, data);
    switch (node->op->holds[k]) {
    case HOLDS_ANY:
        break;
    case HOLDS_HYPER:
        memcpy(data, hyper, sizeof hyper);
        break;
    case HOLDS_SQUARES:
    case HOLDS_POSITIVE:
    case HOLDS_MASK:
    case HOLDS_WHOLE:
    case HOLDS_HALF:
        for (int64_t i = 0; i < numel; i++)
            set_number(data, type->dtype, i, op_draw_held(node->op->holds[k], get_number(data, type->dtype, i)));
        break;
    case HOLDS_NORM2:
        *(float *)data = 30;
        break;
    case HOLDS_LABELS:
        for (int64_t i = 1; i < numel; i += 4) ((int32_t *)data)[i] = IGNORE_INDEX;
        break;
    case HOLDS_DOC_START:
        draw_documents(node, type, data);
        break;
    case HOLDS_SEGMENTS:
        draw_segments(node, type, data);
        break;
    case HOLDS_CONTROLS:
        draw_controls(data, numel / SAMPLE_CONTROLS);
        break;
    case HOLDS_SLOTS:
        draw_slots(data, numel, range);
        break;
    case HOLDS_SEEN:
        draw_seen(data, numel);
        break;
    case HOLDS_SCALE:
        draw_scales(data, numel / FP8_SCALE_FLOATS);
        break;
    case HOLDS_PAGES: /* downwards from the last page */
        for (int64_t i = 0; i < numel; i++) ((int32_t *)data)[i] = (int32_t)(range - 1 - i % range);
        break;
    }
}

void op_mask(const Node *node, int k, const OpSample *sample, void *data)
{
    const TensorType *type = &node->in[k]->type;
    int64_t           cols = type_cols(type), from = sample->masked[k];
    if (!from || !(DT_SET(type->dtype) & DT_SET_FLOAT)) return;
    for (int64_t row = 0; row < type_rows(type); row++)
        for (int64_t c = from; c < cols; c++) set_number(data, type->dtype, row * cols + c, -INFINITY);
}
