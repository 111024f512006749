/* sg_head_decoder: chooses ids from hidden states with a head's matrix alone, without a model. */
#include "api/api.h"

#include "infer/head_ranks.h"

_Static_assert((int)SG_GREEDY == (int)HEAD_GREEDY && (int)SG_TEMPERATURE == (int)HEAD_BY_TEMPERATURE &&
                   (int)SG_TOP_K == (int)HEAD_BY_TOP_K && (int)SG_TOP_P == (int)HEAD_BY_TOP_P,
               "sg_strategy follows HeadStrategy");

struct sg_head_decoder {
    HeadRanks   *ranks;
    HeadDecoder *decoder; /* the decoder of the first rank */
};

static Status dtype_of(sg_dtype dtype, const char *what, DType *out)
{
    static const DType dtypes[] = {[SG_F32] = DT_F32, [SG_F16] = DT_F16, [SG_BF16] = DT_BF16, [SG_I8] = DT_I8};
    FAIL_IF((unsigned)dtype > SG_I8, ERR_INVALID, "%s: dtype %d; expected 0 to %d", what, (int)dtype, SG_I8);
    *out = dtypes[dtype];
    return OK;
}

static Status read_options(const sg_head_options *o, const sg_matrix *m, HeadDecoderOptions *out)
{
    TRY(api_need(o, "options"));
    TRY(api_need(m, "matrix"));
    *out = (HeadDecoderOptions){.vocab = o->vocab,
                                .dim = o->dim,
                                .rows = o->max_rows,
                                .matrix = {.data = m->data, .by_columns = m->by_columns, .on_device = m->on_device, .scale = m->scale},
                                .bias = o->bias,
                                .strategy = (HeadStrategy)o->strategy,
                                .temperature = o->temperature,
                                .top_k = o->top_k,
                                .top_p = o->top_p,
                                .seed = o->seed};
    TRY(dtype_of(m->dtype, "matrix", &out->matrix.dtype));
    return dtype_of(o->dtype, "options", &out->dtype);
}

static Status open_decoder(const sg_head_options *options, const sg_matrix *matrix, sg_head_decoder **out)
{
    HeadDecoderOptions head;
    TRY(api_need(out, "out_decoder"));
    TRY(read_options(options, matrix, &head));
    FAIL_IF(options->threads < 0, ERR_INVALID, "threads %d; expected a number of them, or 0 for all cores", options->threads);
    sg_head_decoder *decoder = api_allocate(sizeof *decoder);
    Status status = head_ranks_open(&head, options->device ? options->device : "auto", options->gpu, options->threads, &decoder->ranks);
    if (status == OK)
        decoder->decoder = head_ranks_decoder(decoder->ranks), *out = decoder;
    else
        sg_head_decoder_close(decoder);
    return status;
}

sg_status sg_head_decoder_open(const sg_head_options *options, const sg_matrix *matrix, sg_head_decoder **out_decoder)
{
    api_begin();
    return api_end(open_decoder(options, matrix, out_decoder));
}

void sg_head_decoder_close(sg_head_decoder *decoder)
{
    if (!decoder) return;
    head_ranks_close(decoder->ranks);
    sg_free(decoder);
}

static Status get_info(const sg_head_decoder *decoder, sg_head_info *out)
{
    TRY(api_need(decoder, "decoder"));
    TRY(api_need(out, "out_info"));
    const Device *device = head_ranks_device(decoder->ranks);
    *out = (sg_head_info){.device_bytes = head_ranks_bytes(decoder->ranks),
                          .device = device->api->name,
                          .stream = device->stream,
                          .batches = head_decoder_batches(decoder->decoder),
                          .waiting = head_decoder_waiting(decoder->decoder)};
    return OK;
}

sg_status sg_head_decoder_get_info(sg_head_decoder *decoder, sg_head_info *out_info)
{
    api_begin();
    return api_end(get_info(decoder, out_info));
}

static Status decode_later(sg_head_decoder *decoder, const void *hidden, sg_dtype dtype, bool on_device, int64_t rows)
{
    DType of_hidden;
    TRY(api_need(decoder, "decoder"));
    TRY(dtype_of(dtype, "hidden", &of_hidden));
    return head_ranks_queue(decoder->ranks, hidden, of_hidden, on_device, rows);
}

sg_status sg_head_decoder_decode_later(sg_head_decoder *decoder, const void *hidden, sg_dtype dtype, bool on_device, int64_t rows)
{
    api_begin();
    return api_end(decode_later(decoder, hidden, dtype, on_device, rows));
}

static Status result_of(sg_head_decoder *decoder, int32_t *ids, int64_t rows)
{
    TRY(api_need(decoder, "decoder"));
    TRY(api_need(ids, "ids"));
    return head_ranks_result(decoder->ranks, ids, rows);
}

sg_status sg_head_decoder_result(sg_head_decoder *decoder, int32_t *ids, int64_t rows)
{
    api_begin();
    return api_end(result_of(decoder, ids, rows));
}
