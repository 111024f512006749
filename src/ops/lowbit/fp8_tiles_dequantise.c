/* fp8_tiles_dequantise: decodes a weight from e4m3 codes with scales of tiles (ops/lowbit/fp8_tiles.h). Code times scale is rounded to
 * fp32, then to the weight's dtype. Several weights may become one matrix at once: each has tiles of its own. */
#include "ops/infer.h"
#include "ops/lowbit/fp8_tiles.h"

static const AttrDef fp8_tiles_dequantise_attrs[] = {ATTR_DTYPE(DequantiseAttrs, dtype), DEQUANTISE_ROWS, {0}};

enum { IN_CODES, IN_SCALE };

/* Rows of tiles of the members before `member`. */
static int64_t tiles_before(const int64_t *rows, int member)
{
    int64_t tiles = 0;
    for (int m = 0; m < member; m++) tiles += div_up(rows[m], FP8_TILE);
    return tiles;
}

/* codes e4m3 (N,K), scale f32 (N / 128, K / 128, quotients rounded up) -> w (N,K). With members, the scales of each member follow those of
 * the one before. */
static Status fp8_tiles_dequantise_infer(Node *node)
{
    const DequantiseAttrs *attrs = node->attrs;
    DType                  dtype;
    TRY(infer_input(node, IN_CODES, "codes", DT_SET(DT_E4M3), DIMS(-1, -1)));
    const TensorType *codes = &node->in[IN_CODES]->type;
    int64_t           rows[DEQUANTISE_MAX_MEMBERS];
    TRY(infer_dequantised(attrs, codes->dim[0], &dtype));
    int64_t down = tiles_before(rows, dequantise_members(attrs, codes->dim[0], rows));
    TRY(infer_input(node, IN_SCALE, "scale", DT_SET_F32, DIMS(down, div_up(codes->dim[1], FP8_TILE))));
    node->out[0]->type = type_as(codes, dtype);
    return OK;
}

static OpCost fp8_tiles_dequantise_cost(const Node *node)
{
    return cost_streaming(node, (double)type_numel(&node->out[0]->type));
}

/* Decodes elements [at, at + count) of one row of a tile. */
static void decode_row(const TensorView *w, int64_t at, int64_t count, float scale, const uint8_t *codes)
{
    float scratch[FP8_TILE], *row = tile_result(w, at, scratch);
    for (int64_t i = 0; i < count; i++) row[i] = small_decode(small_e4m3(), codes[at + i]) * scale;
    tile_store(w, at, row, count);
}

typedef struct Member {
    const KernelArgs *args;
    int64_t           first, rows, tiles; /* tiles: rows of tiles before this member */
} Member;

static void dequantise_task(void *context, int64_t task, int worker)
{
    const Member     *member = context;
    const TensorView *w = &member->args->out[0];
    const float      *scales = member->args->in[IN_SCALE].data;
    int64_t           cols = w->type.dim[1], across = div_up(cols, FP8_TILE), step = rows_per_task(cols);
    int64_t           end = min_i64(member->rows, (task + 1) * step);
    (void)worker;
    for (int64_t row = task * step; row < end; row++)
        for (int64_t c = 0; c < cols; c += FP8_TILE)
            decode_row(w, (member->first + row) * cols + c, min_i64(FP8_TILE, cols - c),
                       scales[(member->tiles + row / FP8_TILE) * across + c / FP8_TILE], member->args->in[IN_CODES].data);
}

static Status fp8_tiles_dequantise_cpu(const KernelArgs *args)
{
    const TensorType *w = &args->out[0].type;
    int64_t           rows[DEQUANTISE_MAX_MEMBERS];
    int               count = dequantise_members(args->attrs, w->dim[0], rows);
    Member            member = {.args = args};
    for (int m = 0; m < count; m++) {
        member.rows = rows[m];
        pool_run(args->pool, div_up(member.rows, rows_per_task(w->dim[1])), dequantise_task, &member);
        member.first += member.rows;
        member.tiles += div_up(member.rows, FP8_TILE);
    }
    return OK;
}

const OpDef op_fp8_tiles_dequantise = {
    .id = OP_FP8_TILES_DEQUANTISE,
    .name = "fp8_tiles_dequantise",
    .synopsis = "w = values of e4m3 codes, times the scale of their tile of 128 rows and columns",
    .num_in = 2,
    .num_out = 1,
    .min_in = 2,
    .attrs_size = sizeof(DequantiseAttrs),
    .attrs = fp8_tiles_dequantise_attrs,
    .infer = fp8_tiles_dequantise_infer,
    .cost = fp8_tiles_dequantise_cost,
    .cpu = {{DT_SET_FLOAT,
             fp8_tiles_dequantise_cpu,
             "reference",
             {{.in = 1u << IN_CODES, .dtypes = DT_SET(DT_E4M3)}, {.in = 1u << IN_SCALE, .dtypes = DT_SET_F32}}}},
    .samples = "e4m3[1,1], [1,1]\n"
               "e4m3[3,50], [1,1] {dtype=bf16}\n"
               "e4m3[128,256], [1,2] {dtype=bf16}\n"
               "e4m3[131,257], [2,3]\n"
               "e4m3[259,136], [4,2] {dtype=bf16, rows0=130, rows1=1, rows2=128}\n",
    .large = "e4m3[4096,1024], [32,8] {dtype=bf16}\n"
             "e4m3[4096,1024], [32,8]\n"
             "e4m3[1000,3080], [8,25] {dtype=bf16}\n",
};
