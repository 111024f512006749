/* See decoding.h. A plan's size grows with its rows, so the most rows that fit are found by doubling, then bisection. */
#include "fit/decoding.h"

#include "fit/fit.h"
#include "setup/setup.h"

static Status try_rows(InferModel *infer, int64_t rows, int64_t context, DecodingFit *out)
{
    Arena arena = {0};
    Plan *plan;
    infer_want_decoding(infer, &(DecoderOptions){.rows = rows, .context = context});
    Status status = setup_plan(&arena, infer->model, &infer->options, infer->device, &plan);
    if (status == OK) {
        const int64_t *bytes = plan->region_bytes[SPACE_DEVICE];
        *out = (DecodingFit){rows,        bytes[REGION_WEIGHTS], bytes[REGION_CACHE], setup_needed_bytes(plan), plan->facts.memory_bytes,
                             plan->latent};
    }
    arena_deinit(&arena);
    return status;
}

static bool fits(const DecodingFit *fit)
{
    return !fit->limit || fit->all <= fit->limit;
}

Status fit_decoding(InferModel *infer, int64_t context, DecodingFit *out)
{
    int64_t     too_many = FIT_MOST_ROWS + 1;
    DecodingFit tried;
    TRY(try_rows(infer, 1, context, out));
    if (!fits(out)) {
        out->rows = 0;
        return OK;
    }
    while (too_many - out->rows > 1) {
        int64_t rows = 2 * out->rows < too_many ? 2 * out->rows : out->rows + (too_many - out->rows) / 2;
        TRY(try_rows(infer, rows, context, &tried));
        if (fits(&tried))
            *out = tried;
        else
            too_many = rows;
    }
    return OK;
}

void fit_print_decoding(const DecodingFit *fit, int64_t context, StrBuf *out)
{
    char cache[32], weights[32], all[32], limit[32];
    size_text(fit->cache, cache);
    size_text(fit->weights, weights);
    size_text(fit->all, all);
    size_text(fit->limit, limit);
    strbuf_printf(out, "%-10s ", "decoding");
    if (fit->rows)
        strbuf_printf(out, "%lld rows%s of %lld tokens fit", (long long)fit->rows, fit->rows == FIT_MOST_ROWS ? " or more" : "",
                      (long long)context);
    else
        strbuf_printf(out, "not one row of %lld tokens fits", (long long)context);
    strbuf_printf(out, " (KV cache %s, weights %s, with all else %s", cache, weights, all);
    if (fit->limit) strbuf_printf(out, " of %s", limit);
    strbuf_puts(out, ")\n");
    fit_print_latent(&fit->latent, "latent     ", out);
}
