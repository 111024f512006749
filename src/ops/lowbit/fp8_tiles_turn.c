/* fp8_tiles_turn: further forms of a weight in e4m3 codes with scales of tiles, which products read: the transposed codes, for the gradient
 * of the input, and the scales of both layouts in rows padded to a multiple of 4, as products on sm_90 need them. */
#include "ops/lowbit/fp8_rows.h"

enum { IN_CODES, IN_SCALE };
enum { OUT_CODES_T, OUT_SCALE_T, OUT_PADDED };

/* codes e4m3 (N,K), scale f32 (N / 128, K / 128, quotients rounded up) -> codes_t (K,N), scale_t (K / 128, N / 128), padded (N / 128, K /
 * 128). */
static Status fp8_tiles_turn_infer(Node *node)
{
    TRY(infer_input(node, IN_CODES, "codes", DT_SET(DT_E4M3), DIMS(-1, -1)));
    const TensorType *codes = &node->in[IN_CODES]->type;
    int64_t           down = div_up(codes->dim[0], FP8_TILE), across = div_up(codes->dim[1], FP8_TILE);
    TRY(infer_input(node, IN_SCALE, "scale", DT_SET_F32, DIMS(down, across)));
    node->out[OUT_CODES_T]->type = type_make(DT_E4M3, 2, codes->dim[1], codes->dim[0]);
    node->out[OUT_SCALE_T]->type = type_make(DT_F32, 2, across, fp8_tiles_stride(down));
    node->out[OUT_PADDED]->type = type_make(DT_F32, 2, down, fp8_tiles_stride(across));
    return OK;
}

static OpCost fp8_tiles_turn_cost(const Node *node)
{
    return cost_streaming(node, 0);
}

/* Copies scales (down, across), or their transpose, into longer rows padded with zeros. */
static void copy_scales(const float *scale, int64_t down, int64_t across, bool turned, const TensorView *to)
{
    float *out = to->data;
    for (int64_t i = 0; i < to->type.dim[0] && out; i++)
        for (int64_t j = 0; j < to->type.dim[1]; j++)
            out[i * to->type.dim[1] + j] = j >= (turned ? down : across) ? 0 : scale[turned ? j * across + i : i * across + j];
}

static Status fp8_tiles_turn_cpu(const KernelArgs *args)
{
    const TensorType *scale = &args->in[IN_SCALE].type, *codes = &args->in[IN_CODES].type;
    uint8_t          *turned = args->out[OUT_CODES_T].data;
    copy_scales(args->in[IN_SCALE].data, scale->dim[0], scale->dim[1], true, &args->out[OUT_SCALE_T]);
    copy_scales(args->in[IN_SCALE].data, scale->dim[0], scale->dim[1], false, &args->out[OUT_PADDED]);
    if (turned) codes_turn(args->pool, args->in[IN_CODES].data, codes->dim[0], codes->dim[1], turned);
    return OK;
}

#define CODES \
    { \
        { \
            .in = 1u << IN_CODES, .out = 1u << OUT_CODES_T, .dtypes = DT_SET(DT_E4M3) \
        } \
    }

const OpDef op_fp8_tiles_turn = {
    .id = OP_FP8_TILES_TURN,
    .name = "fp8_tiles_turn",
    .synopsis = "codes_t, scale_t = the transpose of codes and scale; padded = scale; rows of both scales are padded to a "
                "multiple of 4",
    .num_in = 2,
    .num_out = 3,
    .min_in = 2,
    .infer = fp8_tiles_turn_infer,
    .cost = fp8_tiles_turn_cost,
    .cpu = {{DT_SET_F32, fp8_tiles_turn_cpu, "reference", CODES}},
    .samples = "e4m3[1,1], [1,1]\n"
               "e4m3[130,300], [2,3]\n"
               "e4m3[640,128], [5,1]\n",
    .large = "e4m3[3072,1024], [24,8]\n"
             "e4m3[1000,3080], [8,25]\n",
};
