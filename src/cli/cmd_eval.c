/* surogate eval MODEL_DIR --text FILE [--json]: losses of a text, or of every text in a folder. */
#include "cli/model_flags.h"

#include "base/json.h"
#include "data/text_file.h"
#include "infer/bigram.h"
#include "infer/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct EvalArgs {
    const char *text, *bigram;
    ModelArgs   model;
    int64_t     context;
    bool        json;
} EvalArgs;

typedef struct Documents {
    TokenIds     ids;   /* ids of all texts, one after another */
    size_t      *begin; /* (count + 1) where each text begins in `ids` */
    size_t       count, longest;
    size_t       bytes; /* bytes of all tokens that have a loss: each text's first token has none */
    const char **paths; /* (count) */
} Documents;

static void documents_deinit(Documents *documents)
{
    token_ids_deinit(&documents->ids);
}

static Status read_documents(Arena *arena, InferModel *infer, const char *path, Documents *out)
{
    TRY(cli_list_files(arena, cli_input_path(path), &out->paths, &out->count));
    out->begin = arena_array(arena, size_t, out->count + 1);
    for (size_t i = 0; i < out->count; i++) {
        TextFile file;
        TRY(text_file_open(out->paths[i], &file));
        Status status = infer_encode(infer, file.text.data, file.text.len, true, &out->ids);
        size_t len = out->ids.len - out->begin[i];
        if (status == OK && len >= 2) out->bytes += file.text.len - infer_first_bytes(infer, file.text, out->ids.data[out->begin[i]]);
        text_file_close(&file);
        TRY(status);
        out->begin[i + 1] = out->ids.len;
        if (len > out->longest) out->longest = len;
    }
    FAIL_IF(out->longest < 2, ERR_INVALID, "%s: no text of at least two tokens", path);
    return OK;
}

/* Within each document, losses[i] is the loss of id i + 1. */
static Status evaluate_documents(InferModel *infer, const EvalArgs *e, const Documents *documents, float *losses, double *out_sum,
                                 size_t *out_count)
{
    TRY(evaluate_start(infer, documents->longest, e->context));
    *out_sum = 0;
    *out_count = 0;
    for (size_t i = 0; i < documents->count; i++) {
        size_t begin = documents->begin[i], len = documents->begin[i + 1] - begin;
        if (len < 2) continue;
        TRY(evaluate_ids(infer, documents->ids.data + begin, len, losses + begin));
        for (size_t k = 0; k + 1 < len; k++) *out_sum += losses[begin + k];
        *out_count += len - 1;
    }
    return OK;
}

/* Bits per byte of a bigram model trained on the texts at `path`. */
static Status bigram_bits(Arena *arena, InferModel *infer, const char *path, const Documents *documents, double *out)
{
    Documents train = {0};
    Status    status = read_documents(arena, infer, path, &train);
    if (status == OK) {
        Bigram *bigram = bigram_create((int32_t)infer->model->vocab_size);
        double  sum = 0;
        for (size_t i = 0; i < train.count; i++) bigram_add(bigram, train.ids.data + train.begin[i], train.begin[i + 1] - train.begin[i]);
        bigram_finish(bigram);
        for (size_t i = 0; i < documents->count; i++)
            sum += bigram_loss(bigram, documents->ids.data + documents->begin[i], documents->begin[i + 1] - documents->begin[i]);
        *out = sum / M_LN2 / (double)documents->bytes;
        bigram_destroy(bigram);
    }
    documents_deinit(&train);
    return status;
}

/* Refuses losses that aren't finite: no figures follow from them. */
static Status check_finite(const Documents *documents, const float *losses)
{
    for (size_t i = 0; i < documents->count; i++)
        for (size_t k = documents->begin[i]; k + 1 < documents->begin[i + 1]; k++)
            FAIL_IF(
                !isfinite(losses[k]), ERR_DIVERGED,
                "%s: the loss of token %zu is %g: the model gives no finite numbers there; its weights may hold NaN, or numbers too large "
                "for its dtype: fp16 ends at 65504, bf16 and fp32 reach further",
                documents->paths[i], k - documents->begin[i] + 1, (double)losses[k]);
    return OK;
}

/* Appends a number, or null if it isn't finite: JSON has no NaN or infinity. */
static void put_number(StrBuf *out, const char *before, double value)
{
    if (isfinite(value))
        strbuf_printf(out, "%s%.9g", before, value);
    else
        strbuf_printf(out, "%snull", before);
}

static void put_problem(StrBuf *out, double mean)
{
    strbuf_puts(out, isfinite(mean) ? "}\n" : ",\"problem\":\"not finite\"}\n");
}

static void print_one(StrBuf *out, const Documents *documents, const float *losses, double mean)
{
    strbuf_puts(out, "{\"ids\":[");
    for (size_t i = 0; i < documents->ids.len; i++) strbuf_printf(out, "%s%d", i ? "," : "", documents->ids.data[i]);
    strbuf_puts(out, "],\"losses\":[");
    for (size_t i = 0; i + 1 < documents->ids.len; i++) put_number(out, i ? "," : "", (double)losses[i]);
    put_number(out, "],\"mean\":", mean);
    put_problem(out, mean);
}

static void print_summary(StrBuf *out, const EvalArgs *e, const Documents *documents, size_t count, double sum, double bigram)
{
    double mean = sum / (double)count, bits = sum / M_LN2 / (double)documents->bytes;
    if (e->json) {
        strbuf_printf(out, "{\"documents\":%zu,\"bytes\":%zu,\"tokens\":%zu", documents->count, documents->bytes, count);
        put_number(out, ",\"mean\":", mean);
        put_number(out, ",\"bits_per_byte\":", bits);
        if (e->bigram) put_number(out, ",\"bigram_bits_per_byte\":", bigram);
        put_problem(out, mean);
        return;
    }
    strbuf_printf(out,
                  "documents       %zu\nbytes           %zu\ntokens          %zu\nloss            %.4f nats a token\nperplexity      %.3f\n"
                  "bits per byte   %.4f\n",
                  documents->count, documents->bytes, count, mean, exp(mean), bits);
    if (e->bigram) strbuf_printf(out, "bigram model    %.4f bits per byte\n", bigram);
}

static Status evaluate(CliArgs *args, const EvalArgs *e, InferModel *infer, Documents *documents)
{
    double bigram = 0, sum;
    size_t count;
    TRY(read_documents(&args->arena, infer, e->text, documents));
    if (e->bigram) TRY(bigram_bits(&args->arena, infer, e->bigram, documents, &bigram));
    float *losses = malloc_or_end(documents->ids.len * sizeof *losses);
    Status status = evaluate_documents(infer, e, documents, losses, &sum, &count);
    if (status == OK) {
        StrBuf out = {0};
        if (e->json && documents->count == 1 && !e->bigram)
            print_one(&out, documents, losses, sum / (double)count);
        else
            print_summary(&out, e, documents, count, sum, bigram);
        status = cli_print(&out);
        strbuf_deinit(&out);
        if (status == OK) status = check_finite(documents, losses);
    }
    free(losses);
    return status;
}

Status cmd_eval(CliArgs *args)
{
    EvalArgs   e = {.model = MODEL_DEFAULTS};
    bool       done;
    const Flag flags[] = {
        {"--text", FLAG_TEXT, &e.text, "FILE", "the text, or a folder whose files are evaluated one by one; -: from standard input"},
        {"--json", FLAG_SWITCH, &e.json, NULL,
         "for one file {\"ids\",\"losses\",\"mean\"}, one loss for every id after the first; what isn't finite is null"},
        {"--context", FLAG_INT, &e.context, "N", "tokens in a window; windows of longer texts overlap by half (the model's, at most 4096)"},
        {"--bigram", FLAG_TEXT, &e.bigram, "FILE", "also print the bits per byte of a bigram model learned from this text or folder"},
        MODEL_FLAGS(&e.model),
    };
    TRY(cli_parse(args, flags, sizeof flags / sizeof *flags, false, &done));
    if (done) return OK;
    TRY(cli_want_words(args, 1));
    FAIL_IF(!e.text, ERR_INVALID, "surogate eval: --text FILE is missing");
    FAIL_IF(e.context < 0, ERR_INVALID, "--context %lld: expected at least 1", (long long)e.context);
    InferModel infer;
    Documents  documents = {0};
    Status     status = cli_open_model(&infer, args->words[0], &e.model);
    if (status == OK) status = evaluate(args, &e, &infer, &documents);
    documents_deinit(&documents);
    infer_close(&infer);
    return status;
}
