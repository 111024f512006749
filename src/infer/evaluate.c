/* A text is cut into rows of the eval program: row r holds tokens [begin, begin + S), and labels only for tokens that no earlier row
 * scored. */
#include "infer/evaluate.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_CONTEXT = 4096,
    ROW_TOKENS = 4096,
    MOST_ROWS = 64,
};

Status evaluate_start(InferModel *infer, size_t longest_ids, int64_t context)
{
    int64_t most = context > 0 ? context : infer->model->max_positions < MOST_CONTEXT ? infer->model->max_positions : MOST_CONTEXT;
    FAIL_IF(most > infer->model->max_positions, ERR_INVALID, "--context %lld: the model was made for %lld positions", (long long)context,
            (long long)infer->model->max_positions);
    int64_t length = (int64_t)longest_ids - 1;
    if (length < 1) length = 1;
    CompileOptions *options = &infer->options;
    int64_t         seq = length < most ? length : most, rows = (length + seq - 1) / seq, fit = ROW_TOKENS / seq;
    int64_t         batch = rows < 1 || fit < 1 ? 1 : rows < fit ? rows : fit;
    options->num_programs = 0;
    compile_add(options, &entry_eval, batch < MOST_ROWS ? batch : MOST_ROWS, seq);
    return infer_start(infer);
}

/* The inputs and outputs of one run of the program. */
typedef struct EvalBatch {
    int64_t  rows, seq;
    Feeds    feeds;
    float   *losses;
    int64_t *first_label; /* (rows): index of the label that column 0 stands for */
} EvalBatch;

static void fill_row(EvalBatch *batch, int64_t row, const int32_t *ids, int64_t count, int64_t begin, int64_t scored)
{
    int64_t at = row * batch->seq;
    for (int64_t t = 0; t < batch->seq; t++) {
        int64_t i = begin + t;
        bool    inside = i + 1 < count;
        batch->feeds.tokens[at + t] = inside ? ids[i] : 0;
        batch->feeds.labels[at + t] = inside && i >= scored ? ids[i + 1] : LABEL_IGNORE;
        batch->feeds.positions[at + t] = (int32_t)t;
        batch->feeds.doc_start[at + t] = inside ? 0 : (int32_t)t;
        batch->feeds.doc_id[at + t] = 0;
    }
    batch->first_label[row] = begin;
}

static Status run_batch(Session *session, const EvalBatch *batch)
{
    size_t         bytes = (size_t)(batch->rows * batch->seq) * 4;
    const Program *program = plan_program(session_plan(session), &entry_eval);
    TRY(session_feed(session, program, &batch->feeds));
    TRY(session_run(session, program));
    return session_output(session, program, "losses", batch->losses, bytes);
}

static Status evaluate_rows(Session *session, EvalBatch *batch, const int32_t *ids, int64_t count, float *losses)
{
    int64_t stride = batch->seq - batch->seq / 2, scored = 0, begin = 0;
    while (scored + 1 < count) {
        int64_t row = 0, from[MOST_ROWS];
        for (; row < batch->rows; row++) {
            from[row] = scored;
            fill_row(batch, row, ids, count, begin, scored);
            int64_t end = begin + batch->seq;
            scored = end < count - 1 ? end : count - 1;
            if (scored < count - 1) begin += stride;
        }
        TRY(run_batch(session, batch));
        for (int64_t r = 0; r < row; r++)
            for (int64_t i = from[r]; i + 1 < count && i < batch->first_label[r] + batch->seq; i++)
                losses[i] = batch->losses[r * batch->seq + i - batch->first_label[r]];
    }
    return OK;
}

Status evaluate_ids(InferModel *infer, const int32_t *ids, size_t count, float *losses)
{
    FAIL_IF(count < 2, ERR_INVALID, "the text has %zu token; expected at least two, as the first has no loss", count);
    const ProgramSpec *spec = &plan_program(infer->plan, &entry_eval)->spec;
    EvalBatch          batch = {.rows = spec->batch, .seq = spec->seq};
    size_t             cells = (size_t)(batch.rows * batch.seq);
    int64_t            numel = feeds_numel((int64_t)cells, NULL, 0);
    int32_t           *memory = calloc_or_end((size_t)numel + cells, sizeof *memory);
    int64_t            first[MOST_ROWS];
    feeds_init(&batch.feeds, memory, (int64_t)cells, NULL, 0);
    batch.losses = (float *)(memory + numel);
    batch.first_label = first;
    Status status = evaluate_rows(infer->session, &batch, ids, (int64_t)count, losses);
    free(memory);
    return status;
}
