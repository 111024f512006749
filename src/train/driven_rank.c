/* See driven_rank.h. Micro-batches wait on the host until the step is whole, as the loss's divisor, their trained tokens, must be known
 * before the first backward pass. */
#include "train/driven_rank.h"

#include "base/log.h"
#include "files/folder.h"
#include "store/output_dir.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Status open_inputs(Trainer *t)
{
    TRY(trainer_open_model(t));
    return trainer_open_tokenizer(t);
}

static Status open_plan(Trainer *t)
{
    TRY(trainer_settle(t));
    TRY(trainer_make_plan(t));
    if (t->config->max_steps > 0) TRY(schedule_make(t->config, t->config->max_steps, &t->schedule));
    return OK;
}

static Status start_session(DrivenRank *d)
{
    TRY(trainer_agree(d->trainer, trainer_start_session(d->trainer)));
    return stepper_gather(&d->trainer->stepper);
}

Status driven_rank_open(const Config *config, Comm *comm, RankPlace place, DrivenRank **out)
{
    DrivenRank *d = *out = calloc(1, sizeof *d);
    if (!d) fatal_out_of_memory(sizeof *d);
    Trainer *t = d->trainer = trainer_create(config, NULL, comm, place);
    t->is_driven = true;
    TRY(trainer_in_turn(t, open_inputs));
    TRY(trainer_agree(t, trainer_open_device(t)));
    TRY(trainer_agree(t, trainer_join(t)));
    TRY(trainer_agree(t, open_plan(t)));
    int64_t began;
    TRY(trainer_agree(t, run_data_began(t->run_file, &began)));
    run_record_make(t->run_file, t->model, place.world, began, &t->record);
    t->keep = t->config->save_total_limit;
    t->branch = INT64_MAX; /* the caller says which checkpoints it goes on from */
    d->taken = arena_array(&t->arena, Feeds, t->config->gradient_accumulation_steps);
    return start_session(d);
}

void driven_rank_close(DrivenRank *d)
{
    if (!d) return;
    weight_list_destroy(d->tensors);
    trainer_destroy(d->trainer);
    free(d);
}

/* ---- micro-batches ---- */

static Status check_cell(const Trainer *t, const DrivenBatch *in, int64_t r, int64_t c)
{
    int64_t i = r * in->cols + c, vocab = t->model->vocab_size, row = (long long)r, col = (long long)c;
    int32_t label = in->labels[i], position = in->positions ? in->positions[i] : 0;
    FAIL_IF(in->tokens[i] < 0 || in->tokens[i] >= vocab, ERR_INVALID, "token %d of row %lld, column %lld; expected 0 to %lld",
            in->tokens[i], (long long)row, (long long)col, (long long)vocab - 1);
    FAIL_IF(label != LABEL_IGNORE && (label < 0 || label >= vocab), ERR_INVALID,
            "target %d of row %lld, column %lld; expected 0 to %lld, or %d where nothing is trained", label, (long long)row, (long long)col,
            (long long)vocab - 1, LABEL_IGNORE);
    if (!position) return OK;
    bool goes_on = c > 0 && position == in->positions[i - 1] + 1 && (!in->documents || in->documents[i] == in->documents[i - 1]);
    FAIL_IF(!goes_on && !(in->documents && in->documents[i] < 0), ERR_INVALID,
            "position %d of row %lld, column %lld; expected 0, where a document begins, or one more than before it", position,
            (long long)row, (long long)col);
    return OK;
}

static const DrivenInput *find_input(const DrivenBatch *in, const char *name)
{
    for (size_t i = 0; i < in->num_inputs; i++)
        if (in->inputs[i].name && strcmp(in->inputs[i].name, name) == 0) return &in->inputs[i];
    return NULL;
}

static Status check_indices(const Trainer *t, const DrivenBatch *in, const OwnInput *own, const int32_t *ids)
{
    int64_t most = compile_index_bound(t->plan, own->name);
    for (int64_t k = 0, i = 0; k < in->rows * in->cols * own->size; k++, i = k / own->size)
        FAIL_IF(ids[k] != own->pad && (ids[k] < 0 || ids[k] >= most), ERR_INVALID,
                "input %s: %d of row %lld, column %lld; expected 0 to %lld, or %d in padding", own->name, ids[k], (long long)(i / in->cols),
                (long long)(i % in->cols), (long long)most - 1, own->pad);
    return OK;
}

/* Each input that the programs that run read is there, as its dtype asks for, and none that the model doesn't have. also NULL: one runs. */
static Status check_inputs(const Trainer *t, const DrivenBatch *in, const Program *program, const Program *also)
{
    const IrModule *module = t->model->module;
    for (int i = 0; i < module->num_inputs; i++) {
        const OwnInput    *own = &module->inputs[i];
        const DrivenInput *given = find_input(in, own->name);
        bool               is_whole = own->dtype == DT_I32;
        bool               is_read = program_reads(program, own->name) || (also && program_reads(also, own->name));
        if (!given && !is_read) continue;
        FAIL_IF(!given, ERR_INVALID, "the model reads the input %s, which the batch lacks", own->name);
        FAIL_IF(is_whole ? !given->ids : !given->values, ERR_INVALID, "input %s: expected %s", own->name,
                is_whole ? "whole numbers (int32)" : "floats (float32)");
        if (is_whole) TRY(check_indices(t, in, own, given->ids));
    }
    for (size_t k = 0; k < in->num_inputs; k++) {
        int i = 0;
        while (i < module->num_inputs && in->inputs[k].name && strcmp(module->inputs[i].name, in->inputs[k].name) != 0) i++;
        FAIL_IF(!in->inputs[k].name || i == module->num_inputs, ERR_INVALID, "the model has no input %s of its own",
                in->inputs[k].name ? in->inputs[k].name : "NULL");
    }
    return OK;
}

static Status check_batch(const Trainer *t, const DrivenBatch *in, const Program *program, const Program *also, bool any_rows)
{
    const ProgramSpec *spec = &program->spec;
    int64_t            most = spec->batch * t->place.world;
    FAIL_IF(!in->tokens || !in->labels, ERR_INVALID, "a micro-batch without tokens or targets");
    FAIL_IF(in->rows < 1 || (!any_rows && in->rows > most), ERR_INVALID, "a micro-batch of %lld rows; expected 1 to %lld (%s)",
            (long long)in->rows, (long long)most,
            t->place.world > 1 ? "per_device_train_batch_size of each rank" : "per_device_train_batch_size");
    FAIL_IF(in->cols < 1 || in->cols > spec->seq, ERR_INVALID, "rows of %lld tokens; expected 1 to %lld (sequence_len)",
            (long long)in->cols, (long long)spec->seq);
    TRY(check_inputs(t, in, program, also));
    for (int64_t r = 0; r < in->rows; r++)
        for (int64_t c = 0; c < in->cols; c++) TRY(check_cell(t, in, r, c));
    return OK;
}

/* Row `from` of the input becomes row `to`. draws NULL: nothing is drawn, and any number does. */
static void fill_row(const DrivenBatch *in, const int32_t *draws, int64_t from, Feeds *out, int64_t seq, int64_t to)
{
    const int32_t *documents = in->documents ? in->documents + from * in->cols : NULL;
    int32_t        start = 0;
    for (int64_t c = 0, i = to * seq; c < in->cols; c++, i++) {
        bool is_padding = documents && documents[c] < 0;
        if (is_padding || driven_begins(in, from * in->cols + c)) start = (int32_t)c;
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

/* Of what the model reads besides. Floats are copied as they are. */
static void fill_own(const IrModule *module, const DrivenBatch *in, int64_t first, const ProgramSpec *spec, Feeds *out)
{
    for (int k = 0; k < module->num_inputs; k++) {
        int32_t           *to = out->array[FEED_COUNT + k];
        int64_t            size = module->inputs[k].size;
        const DrivenInput *given = find_input(in, module->inputs[k].name);
        const void        *from = !given ? NULL : given->ids ? (const void *)given->ids : given->values;
        for (int64_t i = 0; i < spec->batch * spec->seq; i++, to += size) {
            int64_t row = first + i / spec->seq, col = i % spec->seq;
            for (int64_t n = 0; n < size; n++) to[n] = module->inputs[k].pad;
            if (from && row < in->rows && col < in->cols && out->doc_id[i] >= 0)
                memcpy(to, (const int32_t *)from + (row * in->cols + col) * size, sizeof *to * (size_t)size);
        }
    }
}

/* Rows [first, first + spec->batch) of the input, as far as it has them. */
static void fill_batch(const IrModule *module, const DrivenBatch *in, const int32_t *draws, int64_t first, const ProgramSpec *spec,
                       Feeds *out)
{
    out->num_tokens = out->num_trained = 0;
    for (int64_t r = 0; r < spec->batch; r++)
        if (first + r < in->rows)
            fill_row(in, draws, first + r, out, spec->seq, r);
        else
            feeds_pad(out, r, spec->seq, 0, 0);
    fill_own(module, in, first, spec, out);
}

/* Programs of dense rows see a row as one document. */
static Status check_dense(const Trainer *t, const Feeds *batch, const ProgramSpec *spec)
{
    for (int64_t i = 0; t->options.dense && i < spec->batch * spec->seq; i++)
        FAIL_IF(batch->doc_id[i] >= 0 && batch->doc_start[i] > 0, ERR_INVALID,
                "row %lld has more than one document; set sample_packing: true", (long long)(i / spec->seq));
    return OK;
}

static void make_batch(Arena *arena, const IrModule *module, const ProgramSpec *spec, Feeds *out)
{
    int64_t  cells = spec->batch * spec->seq;
    int32_t *memory = arena_array(arena, int32_t, feeds_numel(cells, module->inputs, module->num_inputs));
    feeds_init(out, memory, cells, module->inputs, module->num_inputs);
}

static Status refuse_broken(const DrivenRank *d)
{
    FAIL_IF(d->is_broken, ERR_DEVICE, "an earlier step or load of this trainer failed; load a checkpoint, or open another trainer");
    return OK;
}

Status driven_rank_check(const DrivenRank *d, const DrivenBatch *in)
{
    int64_t most = d->trainer->config->gradient_accumulation_steps;
    TRY(refuse_broken(d));
    FAIL_IF(d->is_summed, ERR_INVALID, "this step's gradients are made; update before the next micro-batch");
    FAIL_IF(d->num_taken == most, ERR_INVALID, "the step has %lld micro-batches already; update, or raise gradient_accumulation_steps",
            (long long)most);
    return check_batch(d->trainer, in, trainer_micro(d->trainer, 0), NULL, false);
}

int64_t driven_rank_rows(const DrivenRank *d)
{
    return trainer_micro(d->trainer, 0)->spec.batch;
}

Status driven_rank_step(DrivenRank *d, const DrivenBatch *in, const int32_t *draws, int64_t *out_trained)
{
    Trainer           *t = d->trainer;
    const ProgramSpec *spec = &trainer_micro(t, 0)->spec;
    Feeds             *batch = &d->taken[d->num_taken];
    if (!batch->tokens) make_batch(&t->arena, t->model->module, spec, batch);
    fill_batch(t->model->module, in, draws, t->place.rank * spec->batch, spec, batch);
    TRY(check_dense(t, batch, spec));
    *out_trained += batch->num_trained;
    return OK;
}

Status driven_rank_drop(DrivenRank *d)
{
    FAIL_IF(d->is_summed, ERR_INVALID, "this step's gradients are made; update, or load a checkpoint");
    d->num_taken = d->num_trained = 0;
    return OK;
}

/* ---- steps ---- */

static int64_t next_index(const Trainer *t)
{
    return t->state.step + t->num_queued;
}

/* What the first step's scales follow from, measured on its micro-batches. */
static Status calibrate(DrivenRank *d)
{
    Trainer *t = d->trainer;
    if (!stepper_must_measure(&t->stepper)) return OK;
    for (int64_t i = 0; i < d->num_taken; i++) TRY(stepper_measure(&t->stepper, next_index(t), (double)d->num_trained, &d->taken[i]));
    return stepper_measured(&t->stepper);
}

static Status run_micros(DrivenRank *d)
{
    Trainer           *t = d->trainer;
    const ProgramSpec *spec = &trainer_micro(t, 0)->spec;
    QueuedStep        *step = &t->queued[next_index(t) % (STEPS_AHEAD + 1)];
    TRY(calibrate(d));
    *step = (QueuedStep){0};
    t->waited = comm_waited(t->comm);
    TRY(stepper_begin(&t->stepper, next_index(t), d->num_taken, (double)d->num_trained, 0));
    for (int64_t i = 0; i < d->num_taken; i++) {
        step_work_add(&step->work, &d->taken[i], spec->batch, spec->seq);
        TRY(stepper_micro(&t->stepper, &d->taken[i]));
    }
    return OK;
}

Status driven_rank_backward(DrivenRank *d)
{
    Trainer *t = d->trainer;
    TRY(refuse_broken(d));
    FAIL_IF(d->num_taken == 0, ERR_INVALID, "there is no micro-batch to make gradients of; call step first");
    if (d->is_summed) return OK;
    FAIL_IF(d->num_trained == 0, ERR_INVALID, "the step has no trained target: all are %d", LABEL_IGNORE);
    FAIL_IF(t->num_queued + d->num_results == MOST_WAITING, ERR_INVALID, "%d steps wait for their result to be asked for", MOST_WAITING);
    Status status = run_micros(d);
    d->is_broken = status != OK;
    d->is_summed = d->has_gradients = status == OK;
    return status;
}

static Status queue_update(DrivenRank *d, double lr)
{
    Trainer    *t = d->trainer;
    int64_t     index = next_index(t);
    QueuedStep *step = &t->queued[index % (STEPS_AHEAD + 1)];
    step->metrics = (StepMetrics){.step = index + 1, .lr = lr, .step_tokens = step->work.tokens, .step_trained = d->num_trained};
    return trainer_queue_update(t, lr);
}

Status driven_rank_update(DrivenRank *d, double lr)
{
    FAIL_IF(!(lr >= 0 && lr <= 1e6), ERR_INVALID, "learning rate %g; expected a number from 0 on", lr);
    TRY(driven_rank_backward(d));
    Status status = queue_update(d, lr);
    d->is_broken = status != OK;
    d->num_taken = d->num_trained = 0;
    d->is_summed = false;
    return status;
}

static Status await_one(DrivenRank *d)
{
    Status status = trainer_await_step(d->trainer, &d->results[d->num_results]);
    d->is_broken |= status != OK;
    d->num_results += status == OK;
    return status;
}

Status driven_rank_result(DrivenRank *d, StepMetrics *out)
{
    TRY(refuse_broken(d));
    FAIL_IF(d->trainer->num_queued + d->num_results == 0, ERR_INVALID, "no step waits for its result to be asked for; update first");
    if (d->num_results == 0) TRY(await_one(d));
    *out = d->results[0];
    memmove(d->results, d->results + 1, (size_t)--d->num_results * sizeof *d->results);
    return OK;
}

Status driven_rank_settle(DrivenRank *d, Session **out_session)
{
    TRY(refuse_broken(d));
    while (d->trainer->num_queued) TRY(await_one(d));
    *out_session = d->trainer->session;
    return OK;
}

Status driven_rank_lr(const DrivenRank *d, double *out)
{
    const Trainer *t = d->trainer;
    FAIL_IF(!t->schedule.total, ERR_INVALID, "the learning rate follows from max_steps, which isn't set: set it, or give a rate");
    FAIL_IF(next_index(t) >= t->schedule.total, ERR_INVALID, "step %lld is behind max_steps: give a rate, or raise it",
            (long long)next_index(t) + 1);
    *out = schedule_lr(&t->schedule, next_index(t));
    return OK;
}

int64_t driven_rank_steps(const DrivenRank *d)
{
    return next_index(d->trainer);
}

/* ---- evaluation ---- */

bool driven_rank_has_scales(const DrivenRank *d)
{
    return !stepper_must_measure(&d->trainer->stepper);
}

/* Scales of these rows, where no step has measured any. The first one measures its own, as if these had never been. */
static Status measure_rows(DrivenRank *d, const DrivenBatch *in)
{
    Trainer       *t = d->trainer;
    const Program *program = plan_program(t->plan, &entry_calibrate);
    Arena          arena = {0};
    Feeds          batch;
    if (driven_rank_has_scales(d)) return OK;
    int64_t rows = program->spec.batch;
    Status  status = OK;
    make_batch(&arena, t->model->module, &program->spec, &batch);
    for (int64_t first = 0; first < in->rows && status == OK; first += rows * t->place.world) {
        fill_batch(t->model->module, in, NULL, first + t->place.rank * rows, &program->spec, &batch);
        status = stepper_measure(&t->stepper, next_index(t), (double)(in->rows * in->cols), &batch);
    }
    arena_deinit(&arena);
    TRY(status);
    TRY(stepper_measured(&t->stepper));
    return stepper_forget_measures(&t->stepper);
}

/* What is read of a program's rows: an output (rows, cols, width). */
typedef struct RowsRead {
    const Program *program;
    const char    *output;
    int64_t        width;
    bool           of_labels; /* a token without a label has zeros; else those of padding have */
} RowsRead;

/* Of rows from `first` on, that the program ran for. */
static void keep_rows(const RowsRead *read, const DrivenBatch *in, const Feeds *batch, int64_t first, const void *from, float *out)
{
    const ProgramSpec *spec = &read->program->spec;
    DType              dtype = graph_output(read->program->graph, read->output)->type.dtype;
    int64_t            width = read->width;
    for (int64_t i = 0; i < spec->batch * spec->seq; i++) {
        int64_t row = first + i / spec->seq, col = i % spec->seq;
        if (row >= in->rows || col >= in->cols) continue;
        float *to = out + (row * in->cols + col) * width;
        if (read->of_labels ? batch->labels[i] == LABEL_IGNORE : batch->doc_id[i] < 0)
            memset(to, 0, (size_t)width * sizeof *to);
        else
            dtype_convert(to, DT_F32, (const char *)from + dtype_bytes(dtype, i * width), dtype, width);
    }
}

static Status run_rows(DrivenRank *d, const DrivenBatch *in, const RowsRead *read, float *out)
{
    Trainer           *t = d->trainer;
    Session           *session;
    const Program     *program = read->program;
    const ProgramSpec *spec = &program->spec;
    int64_t            own = t->place.rank * spec->batch;
    int64_t            num = ((spec->batch - 1) * spec->seq + in->cols) * read->width; /* of the last row no more than is asked for */
    int64_t            bytes = dtype_bytes(graph_output(program->graph, read->output)->type.dtype, num);
    Arena              arena = {0};
    Feeds              batch;
    TRY(driven_rank_settle(d, &session));
    make_batch(&arena, t->model->module, spec, &batch);
    char  *all = arena_array(&arena, char, bytes);
    Status status = stepper_gather(&t->stepper);
    if (status == OK) status = measure_rows(d, in);
    for (int64_t first = 0; first < in->rows && status == OK; first += spec->batch * t->place.world) {
        fill_batch(t->model->module, in, NULL, first + own, spec, &batch);
        status = session_feed(session, program, &batch);
        if (status == OK) status = session_run(session, program);
        if (status == OK) status = session_output(session, program, read->output, all, (size_t)bytes);
        if (status == OK) keep_rows(read, in, &batch, first + own, all, out);
    }
    arena_deinit(&arena);
    return status;
}

/* Rows that scales follow from, where none are there, go through the program that measures too. */
static Status check_rows(const DrivenRank *d, const DrivenBatch *in, const Program *program)
{
    return check_batch(d->trainer, in, program, driven_rank_has_scales(d) ? NULL : plan_program(d->trainer->plan, &entry_calibrate), true);
}

Status driven_rank_losses(DrivenRank *d, const DrivenBatch *in, float *losses)
{
    RowsRead read = {plan_program(d->trainer->plan, &entry_eval), "losses", 1, .of_labels = true};
    TRY(check_rows(d, in, read.program));
    return run_rows(d, in, &read, losses);
}

Status driven_rank_logits(DrivenRank *d, const DrivenBatch *in, float *logits, size_t numel)
{
    const Trainer *t = d->trainer;
    RowsRead       read = {plan_program(t->plan, &entry_logits), "logits", t->model->vocab_size, .of_labels = false};
    DrivenBatch    unlabelled = *in;
    FAIL_IF(!read.program, ERR_INVALID, "this trainer was opened without memory for logits: set whole_logits: true");
    unlabelled.labels = in->tokens; /* scales that these rows are the first to measure need some */
    TRY(check_rows(d, &unlabelled, read.program));
    int64_t want = in->rows * in->cols * read.width;
    FAIL_IF(numel != (size_t)want, ERR_INVALID, "logits of %zu floats; expected %lld: rows, columns, vocab_size", numel, (long long)want);
    return run_rows(d, &unlabelled, &read, logits);
}

/* ---- files ---- */

static Status save_context(DrivenRank *d, const char *dir, StrBuf *text, SaveContext *out)
{
    Session *session;
    TRY(driven_rank_settle(d, &session));
    TRY(trainer_context(d->trainer, false, text, out));
    if (dir) out->output_dir = dir;
    TRY(trainer_agree(d->trainer, trainer_check_length(d->trainer, out->output_dir, d->trainer->state.step)));
    TRY(trainer_agree(d->trainer, output_dir_check_source(out->output_dir, d->trainer->model->dir, "model")));
    return stepper_gather(&d->trainer->stepper);
}

/* No run may be writing there. */
static Status lock_folder(Trainer *t, const char *dir, int *lock)
{
    Status status = OK;
    if (trainer_leads(t)) {
        status = file_make_dirs(dir);
        if (status == OK) status = output_lock_take(dir, lock);
    }
    return trainer_agree(t, status);
}

Status driven_rank_save(DrivenRank *d, const char *dir)
{
    Trainer    *t = d->trainer;
    SaveContext context;
    StrBuf      text = {0};
    int         lock = OUTPUT_LOCK_NONE;
    Status      status = save_context(d, dir, &text, &context);
    t->state.settings_hash = t->record.said_hash;
    t->state.rows = -1; /* which rows there were is the caller's */
    if (status == OK) status = lock_folder(t, context.output_dir, &lock);
    if (status == OK) status = checkpoint_save(&context, &t->state);
    if (lock != OUTPUT_LOCK_NONE) output_lock_release(context.output_dir, &lock);
    if (status == OK && t->branch != INT64_MAX) t->branch = t->state.step;
    strbuf_deinit(&text);
    return status;
}

static Status load(DrivenRank *d)
{
    Trainer *t = d->trainer;
    weight_list_destroy(d->tensors);
    d->tensors = NULL;
    session_destroy(t->session);
    t->session = NULL;
    return start_session(d);
}

Status driven_rank_load(DrivenRank *d, const char *path)
{
    Trainer   *t = d->trainer;
    TrainState state;
    FAIL_IF(strlen(path) >= sizeof t->resume_path, ERR_INVALID, "the path of the checkpoint is too long");
    bool is_dir;
    TRY(trainer_agree(t, trainer_leads(t) ? checkpoint_restore_named(path) : OK));
    TRY(file_is_dir(path, &is_dir));
    FAIL_IF(!is_dir, ERR_CHECKPOINT, "there is no folder %s; expected a checkpoint's, such as output/checkpoint-100", path);
    TRY(checkpoint_verify(path));
    TRY(trainer_agree(t, checkpoint_read_state(path, &state)));
    strcpy(t->resume_path, path);
    TRY(trainer_refuse_other_kind(t));
    t->state = state;
    t->branch = state.step;
    t->num_queued = d->num_results = 0;
    d->num_taken = d->num_trained = 0;
    d->is_summed = d->has_gradients = false;
    Status status = load(d);
    d->is_broken = status != OK;
    return status;
}

/* The folder in which all ranks write what is exported, and what rank 0 holds until that gets its name. */
typedef struct Export {
    char         partial[4096];
    FolderWriter writer;
    bool         is_begun;
    int          lock;
} Export;

static Status begin_folder(Arena *arena, const char *dir, Export *export)
{
    bool is_there;
    TRY(file_is_dir(dir, &is_there));
    if (is_there) TRY(output_lock_take(dir, &export->lock));
    TRY(folder_begin(arena, dir, &export->writer));
    export->is_begun = true;
    snprintf(export->partial, sizeof export->partial, "%s", export->writer.partial);
    return OK;
}

static Status begin_export(Trainer *t, Arena *arena, const char *dir, Export *export)
{
    TRY(trainer_agree(t, trainer_leads(t) ? begin_folder(arena, dir, export) : OK));
    return t->comm ? comm_broadcast(t->comm, 0, export->partial, sizeof export->partial) : OK;
}

/* One file of weights, or several with an index: readers of a folder that has both would take the older ones. */
static Status remove_other_form(Arena *arena, const FolderWriter *writer)
{
    const char *one = "model.safetensors", *index = "model.safetensors.index.json";
    bool        is_one;
    TRY(file_exists(arena_printf(arena, "%s/%s", writer->partial, one), &is_one));
    return file_remove_tree(arena_printf(arena, "%s/%s", writer->path, is_one ? index : one));
}

static Status end_export(Arena *arena, Export *export, bool whole, Status status)
{
    const char *dir = export->writer.path;
    if (export->is_begun) {
        if (status == OK && whole && export->writer.is_there) status = remove_other_form(arena, &export->writer);
        status = status == OK ? folder_finish(&export->writer, whole ? "config.json" : "adapter_config.json")
                              : folder_abandon(&export->writer, status);
    }
    if (export->lock != OUTPUT_LOCK_NONE) output_lock_release(dir, &export->lock);
    return status;
}

/* By way of an adapter's folder in it. */
static Status export_merged(DrivenRank *d, const SaveContext *context, const char *dir)
{
    Trainer    *t = d->trainer;
    Arena       arena = {0};
    const char *adapter = arena_printf(&arena, "%s/.adapter.partial", dir);
    Status      status = trainer_agree(t, file_make_dirs(adapter));
    if (status == OK) status = checkpoint_save_model(context, adapter);
    if (status == OK && trainer_leads(t)) status = trainer_merge(t, adapter, dir);
    if (status == OK && trainer_leads(t)) status = file_remove_tree(adapter);
    arena_deinit(&arena);
    return status;
}

Status driven_rank_export(DrivenRank *d, const char *dir, bool whole)
{
    Trainer    *t = d->trainer;
    bool        has_adapter = t->options.lora.enabled;
    SaveContext context;
    StrBuf      text = {0};
    Arena       arena = {0};
    Export export = {.lock = OUTPUT_LOCK_NONE};
    FAIL_IF(!whole && !has_adapter, ERR_INVALID, "this run trains no adapter: export the model, or set lora: true");
    Status status = save_context(d, dir, &text, &context);
    if (status == OK) status = begin_export(t, &arena, dir, &export);
    if (status == OK && whole && has_adapter)
        status = export_merged(d, &context, export.partial);
    else if (status == OK)
        status = checkpoint_save_model(&context, export.partial);
    if (trainer_leads(t)) status = end_export(&arena, &export, whole, status);
    arena_deinit(&arena);
    strbuf_deinit(&text);
    return status;
}

Status driven_rank_tensors(DrivenRank *d)
{
    Trainer *t = d->trainer;
    Session *session;
    TRY(driven_rank_settle(d, &session));
    return d->tensors ? OK : weight_list_create(session, t->model, t->options.lora.enabled, &d->tensors);
}

Status driven_rank_read(DrivenRank *d, size_t index, bool gradient, float *values, int64_t numel)
{
    TRY(driven_rank_tensors(d));
    FAIL_IF(gradient && !d->has_gradients, ERR_INVALID, "there are no gradients yet: call backward or update first");
    return weight_list_read(d->tensors, index, gradient, values, numel);
}
