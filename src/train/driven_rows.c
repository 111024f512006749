/* See driven.h: checks micro-batches and divides them among ranks; computes losses and logits of rows. */
#include "train/driven_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- checks: once, of the rows of all ranks ---- */

static Status check_cell(const DrivenBatch *in, int64_t row, int64_t col, int64_t vocab)
{
    int64_t i = row * in->cols + col;
    int32_t label = in->labels[i], position = in->positions ? in->positions[i] : 0;
    FAIL_IF(in->tokens[i] < 0 || in->tokens[i] >= vocab, ERR_INVALID, "token %d of row %lld, column %lld; expected 0 to %lld",
            in->tokens[i], (long long)row, (long long)col, (long long)vocab - 1);
    FAIL_IF(label != LABEL_IGNORE && (label < 0 || label >= vocab), ERR_INVALID,
            "target %d of row %lld, column %lld; expected 0 to %lld, or %d where nothing is trained", label, (long long)row, (long long)col,
            (long long)vocab - 1, LABEL_IGNORE);
    if (!position) return OK;
    bool goes_on = col > 0 && position == in->positions[i - 1] + 1 && (!in->documents || in->documents[i] == in->documents[i - 1]);
    FAIL_IF(!goes_on && !(in->documents && in->documents[i] < 0), ERR_INVALID,
            "position %d of row %lld, column %lld; expected 0, where a document begins, or one more than before it", position,
            (long long)row, (long long)col);
    return OK;
}

static const DrivenInput *find_given(const DrivenBatch *in, const char *name)
{
    for (size_t i = 0; i < in->num_inputs; i++)
        if (in->inputs[i].name && strcmp(in->inputs[i].name, name) == 0) return &in->inputs[i];
    return NULL;
}

static Status check_indices(const Plan *plan, const DrivenBatch *in, const OwnInput *own, const int32_t *ids)
{
    int64_t most = compile_index_bound(plan, own->name);
    for (int64_t k = 0, i = 0; k < in->rows * in->cols * own->size; k++, i = k / own->size)
        FAIL_IF(ids[k] != own->pad && (ids[k] < 0 || ids[k] >= most), ERR_INVALID,
                "input %s: %d of row %lld, column %lld; expected 0 to %lld, or %d in padding", own->name, ids[k], (long long)(i / in->cols),
                (long long)(i % in->cols), (long long)most - 1, own->pad);
    return OK;
}

static Status check_input(const Plan *plan, const DrivenBatch *in, const OwnInput *own, const Program *program, const Program *also)
{
    const DrivenInput *given = find_given(in, own->name);
    bool               is_whole = own->dtype == DT_I32;
    bool               is_read = program_reads(program, own->name) || (also && program_reads(also, own->name));
    if (!given && !is_read) return OK;
    FAIL_IF(!given, ERR_INVALID, "the model reads the input %s, which the batch lacks", own->name);
    FAIL_IF(is_whole ? !given->ids : !given->values, ERR_INVALID, "input %s: expected %s", own->name,
            is_whole ? "whole numbers (int32)" : "floats (float32)");
    return is_whole ? check_indices(plan, in, own, given->ids) : OK;
}

/* Checks that each input read by the programs is given with its dtype, and that the model has each given input. also: a second program, or
 * NULL. */
static Status check_inputs(const Driven *d, const DrivenBatch *in, const Program *program, const Program *also)
{
    const IrModule *module = driven_trainer(d)->model->module;
    for (int i = 0; i < module->num_inputs; i++) TRY(check_input(driven_plan(d), in, &module->inputs[i], program, also));
    for (size_t k = 0; k < in->num_inputs; k++) {
        const char *name = in->inputs[k].name;
        FAIL_IF(!name || !driven_input_size(d, name), ERR_INVALID, "the model has no input %s of its own", name ? name : "NULL");
    }
    return OK;
}

static Status check_batch(const Driven *d, const DrivenBatch *in, const Program *program, const Program *also, bool any_rows)
{
    const ProgramSpec *spec = &program->spec;
    int64_t            most = spec->batch * d->world;
    FAIL_IF(!in->tokens || !in->labels, ERR_INVALID, "a micro-batch without tokens or targets");
    FAIL_IF(in->rows < 1 || (!any_rows && in->rows > most), ERR_INVALID, "a micro-batch of %lld rows; expected 1 to %lld (%s)",
            (long long)in->rows, (long long)most,
            d->world > 1 ? "per_device_train_batch_size of each rank" : "per_device_train_batch_size");
    FAIL_IF(in->cols < 1 || in->cols > spec->seq, ERR_INVALID, "rows of %lld tokens; expected 1 to %lld (sequence_len)",
            (long long)in->cols, (long long)spec->seq);
    TRY(check_inputs(d, in, program, also));
    for (int64_t r = 0; r < in->rows; r++)
        for (int64_t c = 0; c < in->cols; c++) TRY(check_cell(in, r, c, driven_vocab_size(d)));
    return OK;
}

/* If scales are missing, the rows also go through the program that measures them, so its inputs are checked too. */
static Status check_rows(const Driven *d, const DrivenBatch *in, const Program *program)
{
    return check_batch(d, in, program, driven_has_scales(d) ? NULL : plan_program(driven_plan(d), &entry_calibrate), true);
}

/* ---- a rank's rows ---- */

/* Whether a document begins at cell i: its position is 0; without positions, its document number differs from the cell before. In that case
 * the first cell of a row gives false. */
static bool begins(const DrivenBatch *in, int64_t i)
{
    if (in->positions) return in->positions[i] == 0;
    return in->documents && i % in->cols > 0 && in->documents[i] != in->documents[i - 1];
}

/* Copies row `from` of the input to row `to`. draws NULL: nothing is drawn, so document numbers don't matter. */
static void fill_row(const DrivenBatch *in, const int32_t *draws, int64_t from, Feeds *out, int64_t seq, int64_t to)
{
    const int32_t *documents = in->documents ? in->documents + from * in->cols : NULL;
    int32_t        start = 0;
    for (int64_t c = 0, i = to * seq; c < in->cols; c++, i++) {
        bool is_padding = documents && documents[c] < 0;
        if (is_padding || begins(in, from * in->cols + c)) start = (int32_t)c;
        out->tokens[i] = in->tokens[from * in->cols + c];
        out->labels[i] = is_padding ? LABEL_IGNORE : in->labels[from * in->cols + c];
        out->positions[i] = (int32_t)c - start;
        out->doc_start[i] = start;
        out->doc_id[i] = is_padding ? -1 : draws ? draws[from * in->cols + c] : 0;
        out->num_tokens += !is_padding;
        out->num_trained += out->labels[i] != LABEL_IGNORE;
    }
    feeds_pad(out, to, seq, in->cols, 0);
}

/* Fills the inputs that the model declares. Floats are copied bit by bit. */
static void fill_own(const IrModule *module, const DrivenBatch *in, int64_t first, const ProgramSpec *spec, Feeds *out)
{
    for (int k = 0; k < module->num_inputs; k++) {
        int32_t           *to = out->array[FEED_COUNT + k];
        int64_t            size = module->inputs[k].size;
        const DrivenInput *given = find_given(in, module->inputs[k].name);
        const void        *from = !given ? NULL : given->ids ? (const void *)given->ids : given->values;
        for (int64_t i = 0; i < spec->batch * spec->seq; i++, to += size) {
            int64_t row = first + i / spec->seq, col = i % spec->seq;
            for (int64_t n = 0; n < size; n++) to[n] = module->inputs[k].pad;
            if (from && row < in->rows && col < in->cols && out->doc_id[i] >= 0)
                memcpy(to, (const int32_t *)from + (row * in->cols + col) * size, sizeof *to * (size_t)size);
        }
    }
}

/* Fills the program's rows with this rank's share of the input's rows from `first` on, then padding. Returns the first row of the share. */
static int64_t fill_batch(const Trainer *t, const DrivenBatch *in, const int32_t *draws, int64_t first, const ProgramSpec *spec, Feeds *out)
{
    int64_t own = first + t->place.rank * spec->batch;
    out->num_tokens = out->num_trained = 0;
    for (int64_t r = 0; r < spec->batch; r++)
        if (own + r < in->rows)
            fill_row(in, draws, own + r, out, spec->seq, r);
        else
            feeds_pad(out, r, spec->seq, 0, 0);
    fill_own(t->model->module, in, own, spec, out);
    return own;
}

static void make_batch(Arena *arena, const IrModule *module, const ProgramSpec *spec, Feeds *out)
{
    int64_t  cells = spec->batch * spec->seq;
    int32_t *memory = arena_array(arena, int32_t, feeds_numel(cells, module->inputs, module->num_inputs));
    feeds_init(out, memory, cells, module->inputs, module->num_inputs);
}

/* ---- micro-batches of a step ---- */

/* Numbers each token's document for random draws. first_row: index of the batch's first row within the step. Without document numbers a row
 * is one document, whose number is the row's index. */
static void number_documents(Driven *d, const DrivenBatch *in, int64_t first_row)
{
    for (int64_t r = 0; r < in->rows; r++) {
        int32_t number = -1;
        for (int64_t c = 0, i = r * in->cols; c < in->cols; c++, i++) {
            int32_t own = in->documents ? in->documents[i] : (int32_t)(first_row + r);
            if (own < 0)
                number = -1;
            else if (number < 0 || begins(in, i))
                number = in->of_data_set ? own : document_numbers_take(&d->numbers, own);
            d->draws[i] = number;
        }
    }
}

static void make_draws(Driven *d, const DrivenBatch *in, int64_t rows)
{
    int64_t count = in->rows * in->cols;
    if (d->draws_size < count) {
        d->draws = realloc_or_end(d->draws, (size_t)count * sizeof *d->draws);
        d->draws_size = count;
    }
    if (!d->num_taken) document_numbers_clear(&d->numbers);
    number_documents(d, in, d->num_taken * rows * d->world);
}

/* Programs for dense rows treat a row as one document: refuses rows with several. */
static Status check_dense(const Trainer *t, const Feeds *batch, const ProgramSpec *spec)
{
    for (int64_t i = 0; t->options.dense && i < spec->batch * spec->seq; i++)
        FAIL_IF(batch->doc_id[i] >= 0 && batch->doc_start[i] > 0, ERR_INVALID,
                "row %lld has more than one document; set sample_packing: true", (long long)(i / spec->seq));
    return OK;
}

static Status take_rows(DrivenRank *rank, const DrivenBatch *in, int64_t *trained)
{
    const Driven      *d = rank->driven;
    Trainer           *t = rank->trainer;
    const ProgramSpec *spec = &trainer_micro(t, 0)->spec;
    Feeds             *batch = &rank->taken[d->num_taken];
    if (!batch->tokens) make_batch(&t->arena, t->model->module, spec, batch);
    fill_batch(t, in, d->draws, 0, spec, batch);
    TRY(check_dense(t, batch, spec));
    *trained += batch->num_trained;
    return OK;
}

/* Runs on the caller's thread: it doesn't touch devices. */
Status driven_step(Driven *d, const DrivenBatch *in)
{
    const Program *program = trainer_micro(driven_trainer(d), 0);
    int64_t        most = driven_config(d)->gradient_accumulation_steps, trained = d->num_trained;
    TRY(driven_refuse_broken(d));
    FAIL_IF(d->is_summed, ERR_INVALID, "this step's gradients are made; update before the next micro-batch");
    FAIL_IF(d->num_taken == most, ERR_INVALID, "the step has %lld micro-batches already; update, or raise gradient_accumulation_steps",
            (long long)most);
    TRY(check_batch(d, in, program, NULL, false));
    make_draws(d, in, program->spec.batch);
    for (int r = 0; r < d->world; r++) TRY(take_rows(&d->ranks[r], in, &trained));
    d->num_taken++;
    d->num_trained = trained;
    return OK;
}

/* ---- losses and logits ---- */

/* A call that collects an output (rows, cols, width) of a program for all rows. */
typedef struct RowsJob {
    const DrivenBatch *in;
    float             *out;
    const Entry       *entry;
    const char        *output;
    int64_t            width;
    bool               of_labels; /* writes zeros for tokens without a label; else only for padding */
} RowsJob;

/* Measures scales on these rows if no step has measured any. They are used for this call; the first step still measures its own. */
static Status measure_rows(Trainer *t, const DrivenBatch *in)
{
    const Program *program = plan_program(t->plan, &entry_calibrate);
    Arena          arena = {0};
    Feeds          batch;
    Status         status = OK;
    if (!stepper_must_measure(&t->stepper)) return OK;
    make_batch(&arena, t->model->module, &program->spec, &batch);
    for (int64_t first = 0; first < in->rows && status == OK; first += program->spec.batch * t->place.world) {
        fill_batch(t, in, NULL, first, &program->spec, &batch);
        status = stepper_measure(&t->stepper, trainer_next_step(t), (double)(in->rows * in->cols), &batch);
    }
    arena_deinit(&arena);
    TRY(status);
    TRY(stepper_measured(&t->stepper));
    return stepper_forget_measures(&t->stepper);
}

/* Copies the output of the program's rows, which begin with row `first`. */
static void keep_rows(const RowsJob *job, const ProgramSpec *spec, DType dtype, const Feeds *batch, int64_t first, const char *from)
{
    const DrivenBatch *in = job->in;
    int64_t            width = job->width;
    for (int64_t i = 0; i < spec->batch * spec->seq; i++) {
        int64_t row = first + i / spec->seq, col = i % spec->seq;
        if (row >= in->rows || col >= in->cols) continue;
        float *to = job->out + (row * in->cols + col) * width;
        if (job->of_labels ? batch->labels[i] == LABEL_IGNORE : batch->doc_id[i] < 0)
            memset(to, 0, (size_t)width * sizeof *to);
        else
            dtype_convert(to, DT_F32, from + dtype_bytes(dtype, i * width), dtype, width);
    }
}

/* Computes and writes the output of this rank's rows. */
static Status run_rows(DrivenRank *rank, void *context)
{
    const RowsJob     *job = context;
    Trainer           *t = rank->trainer;
    const Program     *program = plan_program(t->plan, job->entry);
    const ProgramSpec *spec = &program->spec;
    DType              dtype = graph_output(program->graph, job->output)->type.dtype;
    int64_t num = ((spec->batch - 1) * spec->seq + job->in->cols) * job->width; /* the last row is read only up to the columns asked for */
    int64_t bytes = dtype_bytes(dtype, num);
    Arena   arena = {0};
    Feeds   batch;
    make_batch(&arena, t->model->module, spec, &batch);
    char  *all = arena_array(&arena, char, bytes);
    Status status = stepper_gather(&t->stepper);
    if (status == OK) status = measure_rows(t, job->in);
    for (int64_t first = 0; first < job->in->rows && status == OK; first += spec->batch * t->place.world) {
        int64_t own = fill_batch(t, job->in, NULL, first, spec, &batch);
        status = session_feed(t->session, program, &batch);
        if (status == OK) status = session_run(t->session, program);
        if (status == OK) status = session_output(t->session, program, job->output, all, (size_t)bytes);
        if (status == OK) keep_rows(job, spec, dtype, &batch, own, all);
    }
    arena_deinit(&arena);
    return status;
}

Status driven_losses(Driven *d, const DrivenBatch *in, float *losses)
{
    RowsJob job = {.in = in, .out = losses, .entry = &entry_eval, .output = "losses", .width = 1, .of_labels = true};
    TRY(check_rows(d, in, plan_program(driven_plan(d), &entry_eval)));
    TRY(driven_settle(d, "evaluating"));
    return driven_run(d, run_rows, &job, "evaluating");
}

Status driven_logits(Driven *d, const DrivenBatch *in, float *logits, size_t numel)
{
    const Program *program = plan_program(driven_plan(d), &entry_logits);
    DrivenBatch    unlabelled = *in;
    RowsJob        job = {.in = &unlabelled, .out = logits, .entry = &entry_logits, .output = "logits", .width = driven_vocab_size(d)};
    FAIL_IF(!program, ERR_INVALID, "this trainer was opened without memory for logits: set whole_logits: true");
    unlabelled.labels = in->tokens; /* measuring scales needs labels */
    TRY(check_rows(d, &unlabelled, program));
    int64_t want = in->rows * in->cols * job.width;
    FAIL_IF(numel != (size_t)want, ERR_INVALID, "logits of %zu floats; expected %lld: rows, columns, vocab_size", numel, (long long)want);
    TRY(driven_settle(d, "evaluating"));
    return driven_run(d, run_rows, &job, "evaluating");
}
