/* Steps driven by the caller: they give the same bits as a run on the same batches. A run and a trainer can each resume from the other's
 * checkpoints. No call crashes. */
#include "surogate.h"

#include "test.h"

#include <fcntl.h>
#include <math.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[] = "/tmp/surogate-api-trainer-XXXXXX";

enum { STEPS = 6, B = 4, T = 32, MICROS = 2, CELLS = B * T };

#define EXACT 1e-6
#define BF16 5e-3
#define FP8 5e-3

static const char *under(const char *name)
{
    static char paths[16][256];
    static int  next;
    char       *path = paths[next++ % 16];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

static void write_run_file(void)
{
    FILE *text = fopen(under("text.txt"), "w"), *run = fopen(under("run.yaml"), "w");
    for (int i = 0; i < 300; i++) fprintf(text, "To be, or not to be, that is question number %d.\n\n", i);
    fprintf(run,
            "model: examples/shakespeare\nfrom_scratch: true\noutput_dir: %s/out\ndatasets: [{path: %s/text.txt, type: text}]\n"
            "sequence_len: %d\nper_device_train_batch_size: %d\ngradient_accumulation_steps: %d\nmax_steps: %d\nmodel_dtype: fp32\n"
            "save_steps: 3\nsave_total_limit: 0\nvalidation_split_ratio: 0.1\neval_steps: 0\nwarmup_steps: 2\ngenerate_samples: 1\n"
            "sample_max_tokens: 8\nlora_rank: 2\n",
            dir, dir, T, B, MICROS, STEPS);
    fclose(text);
    fclose(run);
}

static void expect_ok(sg_status status, int line)
{
    if (status != SG_OK) test_fail(__FILE__, line, "%s", sg_message());
}
#define OKAY(call) expect_ok(call, __LINE__)

/* The arguments with which the tests open runs: run.yaml, an output folder, and the settings `more` up to a NULL. */
typedef struct Args {
    const char *items[12];
    size_t      count;
} Args;

static Args args_of(const char *output, const char *const *more)
{
    static char texts[16][300];
    static int  next;
    char       *text = texts[next++ % 16];
    snprintf(text, sizeof texts[0], "output_dir=%s", under(output));
    Args args = {{under("run.yaml"), text}, 2};
    while (more && *more) args.items[args.count++] = *more++;
    return args;
}

static void run(const Args *args)
{
    sg_run    *handle = NULL;
    sg_outcome outcome = {0};
    OKAY(sg_run_open(args->items, args->count, &handle));
    OKAY(sg_run_train(handle, &outcome));
    EXPECT_INT(outcome.steps, STEPS);
    sg_run_close(handle);
}

static sg_trainer *open_trainer(const Args *args)
{
    sg_trainer *trainer = NULL;
    OKAY(sg_trainer_open(args->items, args->count, &trainer));
    return trainer;
}

/* Makes the steps from `from` to `end` as a run makes them. */
static void drive(sg_trainer *trainer, sg_dataset *data, int64_t from, int64_t end)
{
    sg_batch batch;
    sg_step  step;
    OKAY(sg_dataset_seek(data, from));
    for (int64_t s = from; s < end; s++) {
        for (int m = 0; m < MICROS; m++) {
            OKAY(sg_dataset_next(data, &batch));
            OKAY(sg_trainer_step_data(trainer, &batch));
        }
        OKAY(sg_trainer_update(trainer, (double)NAN));
        if (s > from) OKAY(sg_trainer_result(trainer, &step)); /* a result is asked for one step late */
    }
    OKAY(sg_trainer_result(trainer, &step));
    EXPECT_INT(step.step, end);
    EXPECT(step.is_applied && step.loss > 0 && step.norm > 0 && step.trained > 0 && step.trained <= step.tokens);
}

static void expect_same_file(const char *a, const char *b)
{
    char command[700];
    snprintf(command, sizeof command, "cmp %s %s", under(a), under(b));
    if (system(command) != 0) test_fail(__FILE__, __LINE__, "%s and %s differ", a, b);
}

/* Logits of a batch without targets. The caller frees the result. */
static float *logits_of(sg_trainer *trainer, sg_batch batch)
{
    sg_trainer_info info;
    OKAY(sg_trainer_get_info(trainer, &info));
    size_t numel = (size_t)(batch.rows * batch.cols * info.vocab_size);
    float *logits = malloc(numel * sizeof *logits);
    for (size_t i = 0; i < numel; i++) logits[i] = NAN;
    batch.targets = NULL;
    OKAY(sg_trainer_logits(trainer, &batch, logits, numel));
    return logits;
}

/* Losses must equal -ln p of each target as the logits give it; at padding they must be 0. */
static void expect_losses_of_logits(sg_trainer *trainer, const sg_batch *batch, double near)
{
    sg_trainer_info info;
    int64_t         cells = batch->rows * batch->cols, trained = 0;
    float          *logits = logits_of(trainer, *batch), *losses = malloc((size_t)cells * sizeof *losses);
    OKAY(sg_trainer_get_info(trainer, &info));
    OKAY(sg_trainer_losses(trainer, batch, losses, NULL, NULL));
    for (int64_t i = 0; i < cells; i++) {
        const float *row = logits + i * info.vocab_size;
        double       sum = 0, squares = 0;
        for (int64_t v = 0; v < info.vocab_size; v++) sum += exp((double)row[v]), squares += (double)row[v] * (double)row[v];
        bool is_padding = batch->segments && batch->segments[i] < 0;
        EXPECT((squares == 0) == is_padding);
        if (is_padding || batch->targets[i] < 0) continue;
        EXPECT_NEAR(log(sum) - (double)row[batch->targets[i]], (double)losses[i], near * fmax(1, (double)losses[i]));
        trained++;
    }
    EXPECT(trained > 0);
    free(logits), free(losses);
}

/* near: largest relative difference between losses and the losses computed from logits. */
static void compare_with_run(const char *name, const char *model_file, double near, const char *const *more)
{
    char        run_dir[64], driven_dir[64], x[160], y[160];
    sg_dataset *data = NULL;
    sg_batch    batch;
    double      loss;
    snprintf(run_dir, sizeof run_dir, "%s-run", name);
    snprintf(driven_dir, sizeof driven_dir, "%s-driven", name);
    Args of_run = args_of(run_dir, more), of_driven = args_of(driven_dir, more);
    run(&of_run);
    of_driven.items[of_driven.count++] = "whole_logits=true";
    sg_trainer *trainer = open_trainer(&of_driven);
    OKAY(sg_dataset_open(of_driven.items, of_driven.count, SG_TRAIN, &data));
    OKAY(sg_dataset_next(data, &batch));
    OKAY(sg_trainer_losses(trainer, &batch, NULL, &loss, NULL)); /* neither this call nor logits change the training */
    free(logits_of(trainer, batch));
    drive(trainer, data, 0, 3);
    OKAY(sg_dataset_next(data, &batch));
    expect_losses_of_logits(trainer, &batch, near);
    OKAY(sg_trainer_save(trainer, NULL));
    drive(trainer, data, 3, STEPS);
    OKAY(sg_trainer_save(trainer, NULL));
    const char *files[] = {model_file, "optimizer.safetensors"};
    for (int i = 0; i < 4; i++) {
        int step = i < 2 ? 3 : STEPS;
        snprintf(x, sizeof x, "%s/checkpoint-%d/%s", run_dir, step, files[i % 2]);
        snprintf(y, sizeof y, "%s/checkpoint-%d/%s", driven_dir, step, files[i % 2]);
        expect_same_file(x, y);
    }
    /* resumes from the run's checkpoint, in the same trainer */
    snprintf(x, sizeof x, "%s/checkpoint-3", run_dir);
    OKAY(sg_trainer_load(trainer, under(x)));
    drive(trainer, data, 3, STEPS);
    snprintf(x, sizeof x, "%s-again", name);
    OKAY(sg_trainer_save(trainer, under(x)));
    snprintf(x, sizeof x, "%s-again/checkpoint-%d/%s", name, STEPS, model_file);
    snprintf(y, sizeof y, "%s/checkpoint-%d/%s", run_dir, STEPS, model_file);
    expect_same_file(x, y);
    sg_dataset_close(data);
    sg_trainer_close(trainer);
}

static void a_driven_run_has_the_bits_of_a_run(void)
{
    compare_with_run("full", "model.safetensors", EXACT, NULL);
}

static void so_has_one_of_bf16_weights_and_padded_rows(void)
{
    const char *more[] = {"model_dtype=bf16", "sample_packing=false", "optimizer=adamw_8bit", NULL};
    compare_with_run("bf16", "model.safetensors", BF16, more);
}

static void so_has_one_in_fp8(void)
{
    const char *more[] = {"recipe=fp8_hybrid", "model_dtype=bf16", NULL};
    compare_with_run("fp8", "model.safetensors", FP8, more);
}

/* With several ranks a micro-batch holds the rows of all ranks. */
static void so_has_one_of_several_ranks(void)
{
    const char *more[] = {"device=cpu", "gpus=2", NULL}, *divided[] = {"device=cpu", "gpus=2", "zero_level=3", "model_dtype=bf16", NULL};
    const char *three[] = {"device=cpu", "gpus=3", "zero_level=2", "gradient_accumulation_steps=2", "recipe=fp8_hybrid", NULL};
    compare_with_run("ranks", "model.safetensors", EXACT, more);
    compare_with_run("divided", "model.safetensors", BF16, divided);
    compare_with_run("three", "model.safetensors", FP8, three);
}

/* Settings of an adapter; its base is the model that the first case trained. */
static const char *const *adapter_settings(void)
{
    static char        model[300];
    static const char *more[] = {"lora=true", "lora_dropout=0.1", "from_scratch=false", model, NULL};
    snprintf(model, sizeof model, "model=%s", under("full-run"));
    return more;
}

static void so_has_one_of_adapters_with_dropout(void)
{
    compare_with_run("lora", "adapter_model.safetensors", EXACT, adapter_settings());
}

static void so_has_one_of_adapters_on_several_ranks(void)
{
    static const char *more[7] = {"device=cpu", "gpus=2"};
    memcpy(more + 2, adapter_settings(), 4 * sizeof *more);
    compare_with_run("lora-ranks", "adapter_model.safetensors", EXACT, more);
}

/* ---- one trainer for what follows ---- */

static int32_t ids[CELLS], targets[CELLS];

static sg_batch batch_of(int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < CELLS; i++) ids[i] = (int32_t)(i * 7 % 50);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) targets[r * cols + c] = c + 1 < cols ? ids[r * cols + c + 1] : -100;
    return (sg_batch){.rows = rows, .cols = cols, .ids = ids, .targets = targets};
}

static void gradients_are_those_of_the_mean_loss(void)
{
    Args            args = args_of("grads", NULL);
    sg_trainer     *trainer = open_trainer(&args);
    sg_batch        batch = batch_of(2, 9);
    sg_trainer_info info;
    sg_tensor       tensor;
    sg_step         step;
    double          squares = 0, loss;
    int64_t         trained;
    float           losses[CELLS], one;
    OKAY(sg_trainer_get_info(trainer, &info));
    EXPECT_INT(info.rows, B);
    EXPECT_INT(info.cols, T);
    EXPECT_INT(info.micro_batches, MICROS);
    EXPECT_INT(sg_trainer_gradient(trainer, 0, &one, 1), SG_INVALID);
    EXPECT_CONTAINS(sg_message(), "no gradients yet");
    OKAY(sg_trainer_losses(trainer, &batch, losses, &loss, &trained));
    EXPECT_INT(trained, 16);
    EXPECT(losses[0] > 0 && losses[8] == 0);
    OKAY(sg_trainer_step(trainer, &batch));
    OKAY(sg_trainer_backward(trainer));
    EXPECT(sg_trainer_num_tensors(trainer) > 10);
    for (size_t i = 0; i < sg_trainer_num_tensors(trainer); i++) {
        OKAY(sg_trainer_tensor(trainer, i, &tensor));
        float *values = malloc((size_t)tensor.numel * sizeof *values);
        OKAY(sg_trainer_gradient(trainer, i, values, (size_t)tensor.numel));
        for (int64_t k = 0; k < tensor.numel; k++) squares += (double)values[k] * (double)values[k];
        EXPECT_INT(sg_trainer_weight(trainer, i, values, (size_t)tensor.numel - 1), SG_INVALID);
        OKAY(sg_trainer_weight(trainer, i, values, (size_t)tensor.numel));
        free(values);
    }
    OKAY(sg_trainer_update(trainer, 1e-3));
    OKAY(sg_trainer_result(trainer, &step));
    EXPECT_NEAR(step.loss, loss, 1e-5);
    EXPECT_NEAR(sqrt(squares), step.norm, 1e-4 * step.norm);
    EXPECT_INT(step.trained, 16);
    sg_trainer_close(trainer);
}

/* All that a trainer reports about one step with few rows. */
typedef struct Told {
    sg_step step;
    double  loss; /* loss that sg_trainer_losses gives */
    float   losses[CELLS], *gradients[2], *weights[2];
    int32_t next;
} Told;

static const char *const told_names[] = {"model.embed_tokens.weight", "model.layers.0.mlp.down_proj.weight"};

static void tell(sg_trainer *trainer, Told *told)
{
    sg_batch    batch = batch_of(3, 9);
    sg_sampling greedy = {0};
    sg_tensor   tensor;
    int32_t    *out;
    size_t      num;
    OKAY(sg_trainer_losses(trainer, &batch, told->losses, &told->loss, NULL));
    OKAY(sg_trainer_step(trainer, &batch));
    OKAY(sg_trainer_backward(trainer));
    for (size_t i = 0; i < sg_trainer_num_tensors(trainer); i++) {
        OKAY(sg_trainer_tensor(trainer, i, &tensor));
        for (int k = 0; k < 2; k++) {
            if (strcmp(tensor.name, told_names[k]) != 0) continue;
            told->gradients[k] = calloc((size_t)tensor.numel, sizeof(float));
            told->weights[k] = calloc((size_t)tensor.numel, sizeof(float));
            OKAY(sg_trainer_gradient(trainer, i, told->gradients[k], (size_t)tensor.numel));
            OKAY(sg_trainer_weight(trainer, i, told->weights[k], (size_t)tensor.numel));
        }
    }
    OKAY(sg_trainer_update(trainer, 1e-3));
    OKAY(sg_trainer_result(trainer, &told->step));
    OKAY(sg_trainer_generate(trainer, ids, 4, 1, &greedy, &out, &num));
    told->next = num ? out[0] : -1;
    sg_free(out);
}

/* Several ranks report the same as one: with more rows than a batch of each rank, with divided gradients and weights, with an incomplete
 * step. */
static void ranks_tell_what_one_tells(void)
{
    const char *one[] = {"device=cpu", "per_device_train_batch_size=4", NULL};
    const char *many[] = {"device=cpu", "gpus=2", "zero_level=3", "per_device_train_batch_size=2", NULL};
    Args        args = args_of("told-one", one);
    Told        want = {0}, told = {0};
    sg_trainer *trainer = open_trainer(&args);
    sg_batch    batch = batch_of(5, 9);
    tell(trainer, &want);
    sg_trainer_close(trainer);
    args = args_of("told-many", many);
    trainer = open_trainer(&args);
    EXPECT_INT(sg_trainer_step(trainer, &batch), SG_INVALID);
    EXPECT_CONTAINS(sg_message(), "5 rows; expected 1 to 4 (per_device_train_batch_size of each rank)");
    EXPECT_INT(sg_trainer_update(trainer, 1e-3), SG_INVALID);
    EXPECT_CONTAINS(sg_message(), "no micro-batch");
    EXPECT_INT(sg_trainer_load(trainer, "/nowhere"), SG_CHECKPOINT);
    EXPECT_CONTAINS(sg_message(), "no folder /nowhere");
    tell(trainer, &told); /* the refused calls above don't disturb the trainer */
    sg_trainer_close(trainer);
    EXPECT_INT(told.step.trained, want.step.trained);
    EXPECT_INT(told.step.tokens, want.step.tokens);
    EXPECT_INT(told.next, want.next);
    EXPECT_NEAR(told.loss, want.loss, 1e-6);
    EXPECT_NEAR(told.step.loss, want.step.loss, 1e-5);
    EXPECT_NEAR(told.step.norm, want.step.norm, 1e-4 * want.step.norm);
    EXPECT_NEAR(told.step.accuracy, want.step.accuracy, 1e-6);
    for (int i = 0; i < 27; i++) EXPECT_NEAR(told.losses[i], want.losses[i], 1e-5);
    for (int k = 0; k < 2; k++) {
        EXPECT(want.weights[k] && told.weights[k]);
        for (int i = 0; i < 2000; i++) {
            EXPECT_NEAR(told.weights[k][i], want.weights[k][i], 0);
            EXPECT_NEAR(told.gradients[k][i], want.gradients[k][i], 1e-5);
        }
        free(told.weights[k]), free(want.weights[k]), free(told.gradients[k]), free(want.gradients[k]);
    }
}

static bool plans_logits(sg_trainer *trainer)
{
    char *json;
    OKAY(sg_trainer_plan(trainer, &json));
    bool found = strstr(json, "\"logits\": {\"launches\": ") != NULL;
    sg_free(json);
    return found;
}

/* Cases: more rows than a batch, short rows, several documents in a row, padding; calls between gradients and update; wrong calls; a
 * trainer opened without memory for logits. */
static void logits_are_what_losses_follow_from(void)
{
    const char     *one[] = {"whole_logits=true", NULL}, *many[] = {"whole_logits=true", "device=cpu", "gpus=2", "zero_level=3", NULL};
    Args            args = args_of("logits", one), args_many = args_of("logits-many", many), args_none = args_of("logits-none", NULL);
    sg_trainer     *trainer = open_trainer(&args), *ranks = open_trainer(&args_many), *none = open_trainer(&args_none);
    sg_batch        batch = batch_of(7, 9), other = batch;
    int32_t         segments[63], positions[63];
    float           one_row[9 * 2];
    sg_step         step, same;
    sg_trainer_info info;
    OKAY(sg_trainer_get_info(trainer, &info));
    EXPECT(plans_logits(trainer) && plans_logits(ranks) && !plans_logits(none));
    for (int i = 0; i < 63; i++) {
        segments[i] = i % 9 > 6 ? -1 : i % 9 / 4;
        positions[i] = i % 9 > 6 ? 0 : i % 9 % 4;
        if (i % 9 == 3 || i % 9 >= 6) targets[i] = -100;
    }
    expect_losses_of_logits(trainer, &batch, EXACT);
    float *whole = logits_of(trainer, batch), *of_ranks = logits_of(ranks, batch);
    for (int64_t i = 0; i < 63 * info.vocab_size; i++) EXPECT_NEAR(of_ranks[i], whole[i], 1e-5);
    other.segments = segments;
    other.positions = positions;
    expect_losses_of_logits(trainer, &other, EXACT);
    other.rows = 3;
    sg_trainer *both[] = {trainer, none};
    for (int k = 0; k < 2; k++) {
        OKAY(sg_trainer_step(both[k], &other));
        if (k == 0) free(logits_of(trainer, batch));
        OKAY(sg_trainer_backward(both[k]));
        if (k == 0) free(logits_of(trainer, batch));
        OKAY(sg_trainer_update(both[k], 1e-3));
        if (k == 0) free(logits_of(trainer, batch)); /* logits of the new weights, before the step's result is asked for */
        OKAY(sg_trainer_result(both[k], k ? &same : &step));
    }
    EXPECT(step.loss == same.loss && step.norm == same.norm && step.accuracy == same.accuracy);
    EXPECT_INT(sg_trainer_logits(none, &batch, one_row, 18), SG_INVALID);
    EXPECT_CONTAINS(sg_message(), "without memory for logits: set whole_logits: true");
    EXPECT_INT(sg_trainer_logits(trainer, &batch, one_row, 18), SG_INVALID);
    EXPECT_CONTAINS(sg_message(), "logits of 18 floats; expected");
    EXPECT_INT(sg_trainer_logits(trainer, &batch, NULL, 18), SG_INVALID);
    EXPECT_INT(sg_trainer_logits(trainer, NULL, one_row, 18), SG_INVALID);
    EXPECT_INT(sg_trainer_logits(NULL, &batch, one_row, 18), SG_INVALID);
    other.ids = NULL;
    EXPECT_INT(sg_trainer_logits(trainer, &other, one_row, 18), SG_INVALID);
    other = batch;
    other.cols = T + 1;
    EXPECT_INT(sg_trainer_logits(trainer, &other, one_row, 18), SG_INVALID);
    EXPECT_CONTAINS(sg_message(), "sequence_len");
    free(whole), free(of_ranks);
    sg_trainer_close(trainer), sg_trainer_close(ranks), sg_trainer_close(none);
}

/* Number of targets that the trainer itself would generate next. */
static int64_t count_hits(sg_trainer *trainer, const sg_batch *batch)
{
    sg_sampling greedy = {0};
    int64_t     hits = 0;
    for (int64_t i = 0; i < batch->rows * batch->cols; i++) {
        int64_t  col = i % batch->cols;
        int32_t *out = NULL;
        size_t   num = 0;
        if (batch->targets[i] == -100) continue;
        OKAY(sg_trainer_generate(trainer, batch->ids + i - col, (size_t)col + 1, 1, &greedy, &out, &num));
        hits += num == 1 && out[0] == batch->targets[i];
        sg_free(out);
    }
    return hits;
}

/* In FP8: evaluates before a step has made scales, then again after a step that changes nothing, on the same rows. */
static void it_evaluates_before_the_first_step(void)
{
    const char *more[] = {"recipe=fp8_hybrid", "model_dtype=bf16", NULL};
    Args        args = args_of("before", more);
    sg_trainer *trainer = open_trainer(&args);
    sg_batch    batch = batch_of(2, 9);
    sg_step     step;
    double      before, after;
    OKAY(sg_trainer_losses(trainer, &batch, NULL, &before, NULL));
    OKAY(sg_trainer_step(trainer, &batch));
    OKAY(sg_trainer_update(trainer, 0));
    OKAY(sg_trainer_result(trainer, &step));
    OKAY(sg_trainer_losses(trainer, &batch, NULL, &after, NULL));
    EXPECT_NEAR(before, step.loss, 1e-5);
    EXPECT_NEAR(before, after, 1e-2);
    sg_trainer_close(trainer);
}

static void accuracy_is_of_the_likeliest_tokens(void)
{
    Args        args = args_of("accuracy", NULL);
    sg_trainer *trainer = open_trainer(&args);
    sg_batch    batch = batch_of(2, 9), other;
    sg_step     step;
    double      least = 1, most = 0;
    int32_t     wrong[CELLS];
    memcpy(wrong, targets, sizeof wrong);
    for (int i = 0; i < 8; i += 4) wrong[i] = 50;
    other = batch;
    other.targets = wrong;
    other.rows = 1;
    for (int s = 0; s < 12; s++) {
        int64_t hits = count_hits(trainer, &batch) + count_hits(trainer, &other);
        OKAY(sg_trainer_step(trainer, &batch));
        OKAY(sg_trainer_step(trainer, &other));
        OKAY(sg_trainer_update(trainer, 5e-3));
        OKAY(sg_trainer_result(trainer, &step));
        EXPECT_INT(step.trained, 24);
        EXPECT_NEAR(step.accuracy * 24, (double)hits, 1e-4);
        sg_scalar scalar;
        EXPECT_INT(sg_trainer_num_scalars(trainer), 1);
        OKAY(sg_trainer_scalar(trainer, 0, &scalar));
        EXPECT_STR(scalar.name, "accuracy");
        EXPECT(scalar.value == step.accuracy);
        EXPECT_INT(sg_trainer_scalar(trainer, 1, &scalar), SG_INVALID);
        least = step.accuracy < least ? step.accuracy : least;
        most = step.accuracy > most ? step.accuracy : most;
    }
    EXPECT(least < 0.2 && most > 0.5);
    sg_trainer_close(trainer);
}

/* Checks the standard deviation of all trained tokens' losses, in a step of two micro-batches. */
static void loss_spread_is_of_token_losses(void)
{
    Args        args = args_of("spread", (const char *const[]){"log_scalars=loss_spread", NULL});
    sg_trainer *trainer = open_trainer(&args);
    sg_batch    batch = batch_of(2, 9), other = batch_of(1, 9);
    sg_step     step;
    sg_scalar   scalar;
    float       losses[2][CELLS] = {{0}};
    double      sum = 0, squares = 0;
    int64_t     trained, both = 0;
    OKAY(sg_trainer_losses(trainer, &batch, losses[0], NULL, &trained));
    both += trained;
    OKAY(sg_trainer_losses(trainer, &other, losses[1], NULL, &trained));
    both += trained;
    for (int i = 0; i < 2 * CELLS; i++) {
        double loss = losses[i / CELLS][i % CELLS];
        sum += loss;
        squares += loss * loss;
    }
    OKAY(sg_trainer_step(trainer, &batch));
    OKAY(sg_trainer_step(trainer, &other));
    OKAY(sg_trainer_update(trainer, 5e-3));
    OKAY(sg_trainer_result(trainer, &step));
    OKAY(sg_trainer_scalar(trainer, 0, &scalar));
    EXPECT_STR(scalar.name, "loss_spread");
    EXPECT_NEAR(scalar.value, sqrt(squares / (double)both - sum * sum / (double)(both * both)), 1e-4);
    sg_trainer_close(trainer);
}

/* Two documents in one row give the same as two rows of one document. */
static void segments_keep_documents_apart(void)
{
    Args        args = args_of("segments", NULL);
    sg_trainer *trainer = open_trainer(&args);
    sg_batch    apart = batch_of(2, 8), together = apart;
    int32_t     segments[16];
    float       a[16], b[16];
    for (int i = 0; i < 16; i++) segments[i] = i / 8;
    together.rows = 1;
    together.cols = 16;
    together.segments = segments;
    OKAY(sg_trainer_losses(trainer, &apart, a, NULL, NULL));
    OKAY(sg_trainer_losses(trainer, &together, b, NULL, NULL));
    for (int i = 0; i < 16; i++) EXPECT_NEAR(a[i], b[i], 1e-5);
    sg_trainer_close(trainer);
}

/* Norm of the gradients of a first step with `micros` micro-batches, all rows of which are the same 8 tokens. */
static double norm_of(const int32_t *segments, int64_t rows, int64_t cols, int micros)
{
    Args        args = args_of("masks", adapter_settings());
    sg_trainer *trainer = open_trainer(&args);
    sg_batch    batch = batch_of(rows, cols);
    sg_step     step;
    for (int i = 0; i < rows * cols; i++) {
        ids[i] = i % 8 * 7;
        targets[i] = i % 8 < 7 ? (i % 8 + 1) * 7 : -100;
    }
    batch.segments = segments;
    for (int m = 0; m < micros; m++) OKAY(sg_trainer_step(trainer, &batch));
    OKAY(sg_trainer_update(trainer, 0));
    OKAY(sg_trainer_result(trainer, &step));
    sg_trainer_close(trainer);
    return step.norm;
}

/* Each document of a step has its own dropout masks, however the caller numbers documents: from 0 in each row, from 0 in each micro-batch,
 * or with the same number twice in a row. Unique numbers are used as they are. */
static void each_document_of_a_step_has_masks_of_its_own(void)
{
    static const int32_t zeros[32], two[16] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
    int32_t              again[24] = {0};
    for (int i = 8; i < 16; i++) again[i] = 5;
    double one = norm_of(zeros, 1, 8, 1), counted = norm_of(NULL, 2, 8, 1);
    EXPECT(norm_of(NULL, 1, 8, 1) == one);
    EXPECT(norm_of(two, 2, 8, 1) == counted);
    EXPECT(norm_of(two, 1, 16, 1) == counted);
    EXPECT(fabs(counted - one) > 1e-3 * one);
    EXPECT(fabs(norm_of(zeros, 2, 8, 1) - one) > 1e-3 * one);
    EXPECT(fabs(norm_of(zeros, 1, 8, 2) - one) > 1e-3 * one);
    double twice = norm_of(two, 2, 8, 2), thrice = norm_of(again, 1, 24, 1);
    EXPECT(fabs(twice - counted) > 1e-4 * one);
    EXPECT(fabs(thrice - norm_of(NULL, 3, 8, 1)) < 0.5 * one && fabs(thrice - one) > 1e-4 * one);
}

static void it_generates_plans_and_exports(void)
{
    Args        args = args_of("export", NULL);
    sg_trainer *trainer = open_trainer(&args);
    sg_sampling greedy = {0};
    sg_model   *model;
    int32_t    *out, *again;
    size_t      num, num_again;
    char       *json;
    OKAY(sg_trainer_plan(trainer, &json));
    EXPECT_CONTAINS(json, "\"total_bytes\"");
    sg_free(json);
    OKAY(sg_trainer_generate(trainer, ids, 4, 6, &greedy, &out, &num));
    OKAY(sg_trainer_export_model(trainer, under("export/model")));
    OKAY(sg_model_open(under("export/model"), NULL, "cpu", 1, &model));
    OKAY(sg_model_generate(model, ids, 4, 6, &greedy, &again, &num_again));
    EXPECT_INT(num, num_again);
    for (size_t i = 0; i < num && i < num_again; i++) EXPECT_INT(out[i], again[i]);
    sg_free(again);
    sg_model_close(model);
    /* an end token that is generated first ends the text, even if it is the last in a long list */
    FILE *config = fopen(under("export/model/generation_config.json"), "w");
    EXPECT(config && fprintf(config, "{\"eos_token_id\": [") > 0);
    for (int32_t id = 0; id < 40; id++)
        if (id != out[0]) EXPECT(fprintf(config, "%d, ", id) > 0);
    EXPECT(fprintf(config, "%d]}", out[0]) > 0 && fclose(config) == 0);
    OKAY(sg_model_open(under("export/model"), NULL, "cpu", 1, &model));
    OKAY(sg_model_generate(model, ids, 4, 6, &greedy, &again, &num_again));
    EXPECT(num_again <= 1);
    EXPECT_INT(sg_trainer_export_adapter(trainer, under("export/adapter")), SG_INVALID);
    EXPECT_CONTAINS(sg_message(), "trains no adapter");
    sg_free(out);
    sg_free(again);
    sg_model_close(model);
    sg_trainer_close(trainer);
}

static void an_adapter_is_exported_alone_and_merged(void)
{
    sg_model   *model = NULL;
    Args        args = args_of("lora-export", adapter_settings());
    sg_trainer *trainer = open_trainer(&args);
    OKAY(sg_trainer_export_adapter(trainer, under("lora-export/adapter")));
    OKAY(sg_trainer_export_model(trainer, under("lora-export/merged")));
    OKAY(sg_model_open(under("full-run"), under("lora-export/adapter"), "cpu", 1, &model));
    sg_model_close(model);
    OKAY(sg_model_open(under("lora-export/merged"), NULL, "cpu", 1, &model));
    sg_model_close(model);
    EXPECT(access(under("lora-export/merged/.adapter.partial"), F_OK) != 0);
    sg_trainer_close(trainer);
}

static void expect_refused(sg_status status, const char *says)
{
    EXPECT_INT(status, SG_INVALID);
    EXPECT_CONTAINS(sg_message(), says);
}

static void wrong_batches_are_refused(void)
{
    Args        args = args_of("wrong", NULL);
    sg_trainer *trainer = open_trainer(&args);
    sg_batch    good = batch_of(2, 8), bad = good;
    int32_t     other[CELLS] = {0};
    sg_step     step;
    bad.rows = B + 1;
    expect_refused(sg_trainer_step(trainer, &bad), "5 rows");
    bad.rows = INT64_MAX;
    expect_refused(sg_trainer_step(trainer, &bad), "per_device_train_batch_size");
    bad = good, bad.cols = T + 1;
    expect_refused(sg_trainer_step(trainer, &bad), "sequence_len");
    bad = good, bad.cols = -1;
    expect_refused(sg_trainer_step(trainer, &bad), "sequence_len");
    bad = good, bad.ids = NULL;
    expect_refused(sg_trainer_step(trainer, &bad), "without tokens");
    bad = good, bad.targets = NULL;
    expect_refused(sg_trainer_losses(trainer, &bad, NULL, NULL, NULL), "without tokens");
    bad = good, bad.positions = other, other[3] = 7;
    expect_refused(sg_trainer_step(trainer, &bad), "position 7 of row 0, column 3");
    bad = good, bad.ids = other, other[3] = 1 << 30;
    expect_refused(sg_trainer_step(trainer, &bad), "token 1073741824 of row 0, column 3");
    bad = good, bad.targets = other, other[3] = -7;
    expect_refused(sg_trainer_step(trainer, &bad), "target -7");
    sg_input input = {.name = "kind", .ids = ids};
    bad = good;
    bad.num_inputs = 1;
    expect_refused(sg_trainer_step(trainer, &bad), "inputs is NULL");
    bad.inputs = &input;
    expect_refused(sg_trainer_step(trainer, &bad), "no input kind of its own");
    input.name = NULL;
    expect_refused(sg_trainer_losses(trainer, &bad, NULL, NULL, NULL), "no input NULL");
    expect_refused(sg_trainer_update(trainer, 1e-3), "no micro-batch");
    expect_refused(sg_trainer_result(trainer, &step), "no step waits");
    OKAY(sg_trainer_step(trainer, &good));
    expect_refused(sg_trainer_update(trainer, -1), "learning rate -1");
    OKAY(sg_trainer_step(trainer, &good));
    expect_refused(sg_trainer_step(trainer, &good), "2 micro-batches already");
    for (int i = 0; i < 2; i++) {
        OKAY(sg_trainer_update(trainer, 1e-3));
        OKAY(sg_trainer_step(trainer, &good));
    }
    expect_refused(sg_trainer_update(trainer, 1e-3), "wait for their result");
    OKAY(sg_trainer_result(trainer, &step));
    OKAY(sg_trainer_update(trainer, 1e-3));
    for (int i = 0; i < 8; i++) targets[i] = targets[8 + i] = -100;
    OKAY(sg_trainer_step(trainer, &good));
    expect_refused(sg_trainer_backward(trainer), "no trained target");
    OKAY(sg_trainer_drop(trainer));
    expect_refused(sg_trainer_backward(trainer), "no micro-batch");
    EXPECT_INT(sg_trainer_load(trainer, under("no-checkpoint")), SG_CHECKPOINT);
    OKAY(sg_trainer_result(trainer, &step)); /* the update before the refused calls is unaffected */
    sg_trainer_close(trainer);
}

/* A failed export leaves nothing that looks like a model in a new folder, and nothing at all in an existing one. */
static void an_export_that_fails_leaves_nothing(void)
{
    Args        args = args_of("export-fails", adapter_settings());
    sg_trainer *trainer = open_trainer(&args);
    OKAY(sg_trainer_export_model(trainer, under("export-there")));
    EXPECT_INT(rename(under("full-run/model.safetensors"), under("full-run/away")), 0);
    EXPECT_INT(sg_trainer_export_model(trainer, under("export-fails/model")), SG_NOT_FOUND);
    EXPECT_CONTAINS(sg_message(), "no weights");
    EXPECT(access(under("export-fails/model"), F_OK) != 0 && access(under("export-fails/.model.partial"), F_OK) != 0);
    EXPECT_INT(sg_trainer_export_model(trainer, under("export-there")), SG_NOT_FOUND);
    EXPECT_CONTAINS(sg_message(), "no weights");
    EXPECT(access(under("export-there/.partial"), F_OK) != 0 && access(under("export-there/.adapter.partial"), F_OK) != 0);
    EXPECT(access(under("export-there/model.safetensors"), F_OK) == 0);
    EXPECT_INT(rename(under("full-run/away"), under("full-run/model.safetensors")), 0);
    sg_trainer_close(trainer);
}

/* No weights of the replaced model remain for readers to load, whether they are in one file or in several. */
static void an_export_replaces_another(void)
{
    static const char *several[] = {"max_shard_size=1MiB", NULL};
    for (int i = 0; i < 3; i++) {
        Args        args = args_of("export-form", i == 1 ? several : NULL);
        sg_trainer *trainer = open_trainer(&args);
        OKAY(sg_trainer_export_model(trainer, under("export-form/model")));
        EXPECT((access(under("export-form/model/model.safetensors"), F_OK) == 0) == (i != 1));
        EXPECT((access(under("export-form/model/model.safetensors.index.json"), F_OK) == 0) == (i == 1));
        sg_trainer_close(trainer);
    }
}

static void an_adapter_is_one_file(void)
{
    sg_model *model;
    Args      args = args_of("large", adapter_settings());
    args.items[args.count++] = "lora_r=512";
    args.items[args.count++] = "max_shard_size=1MiB";
    sg_trainer *trainer = open_trainer(&args);
    OKAY(sg_trainer_export_adapter(trainer, under("large/adapter")));
    EXPECT(access(under("large/adapter/adapter_model.safetensors"), F_OK) == 0);
    OKAY(sg_model_open(under("full-run"), under("large/adapter"), "cpu", 1, &model));
    sg_model_close(model);
    sg_trainer_close(trainer);
}

/* A folder that another run is writing is neither pruned nor written to. */
static void the_folder_of_another_run_is_left_alone(void)
{
    Args        args = args_of("taken", adapter_settings());
    sg_trainer *trainer = open_trainer(&args);
    EXPECT_INT(mkdir(under("taken"), 0777), 0);
    int lock = open(under("taken/.lock"), O_RDWR | O_CREAT, 0644);
    EXPECT(lock >= 0 && flock(lock, LOCK_EX) == 0 && write(lock, "4711\n", 5) == 5);
    expect_refused(sg_trainer_save(trainer, NULL), "taken is being written by process 4711");
    expect_refused(sg_trainer_export_adapter(trainer, under("taken")), "taken is being written by process 4711");
    expect_refused(sg_trainer_export_model(trainer, under("taken")), "taken is being written by process 4711");
    EXPECT(access(under("taken/checkpoint-0"), F_OK) != 0 && access(under("taken/adapter_config.json"), F_OK) != 0);
    close(lock);
    OKAY(sg_trainer_save(trainer, NULL));
    OKAY(sg_trainer_export_adapter(trainer, under("taken")));
    EXPECT(access(under("taken/checkpoint-0/manifest.json"), F_OK) == 0 && access(under("taken/.lock"), F_OK) != 0);
    sg_trainer_close(trainer);
}

/* After returning to an earlier checkpoint, the trainer's next checkpoint counts as the newest. */
static void checkpoints_of_a_branch_that_was_left_are_set_aside(void)
{
    Args        args = args_of("branch", NULL);
    sg_trainer *trainer = open_trainer(&args);
    sg_dataset *data = NULL;
    OKAY(sg_dataset_open(args.items, args.count, SG_TRAIN, &data));
    for (int64_t step = 0; step < 4; step++) {
        drive(trainer, data, step, step + 1);
        OKAY(sg_trainer_save(trainer, NULL));
    }
    EXPECT_INT(rename(under("branch/checkpoint-4"), under("branch/.checkpoint-4.replaced")), 0); /* a killed process may leave this */
    OKAY(sg_trainer_load(trainer, under("branch/checkpoint-4/")));
    OKAY(sg_trainer_load(trainer, under("branch/checkpoint-1")));
    drive(trainer, data, 1, 2);
    EXPECT(access(under("branch/checkpoint-4"), F_OK) == 0);
    OKAY(sg_trainer_save(trainer, NULL));
    static const char *const there[] = {"checkpoint-1", "checkpoint-2", "checkpoint-2.aside", "checkpoint-3.aside", "checkpoint-4.aside"};
    for (size_t i = 0; i < sizeof there / sizeof *there; i++) {
        char path[64];
        snprintf(path, sizeof path, "branch/%s/manifest.json", there[i]);
        if (access(under(path), F_OK) != 0) test_fail(__FILE__, __LINE__, "%s isn't there", path);
    }
    EXPECT(access(under("branch/checkpoint-3"), F_OK) != 0 && access(under("branch/checkpoint-4"), F_OK) != 0);
    drive(trainer, data, 2, 3);
    OKAY(sg_trainer_save(trainer, NULL));
    EXPECT(access(under("branch/checkpoint-2"), F_OK) == 0 && access(under("branch/checkpoint-3"), F_OK) == 0);
    sg_dataset_close(data);
    sg_trainer_close(trainer);
}

static void null_is_refused_everywhere(void)
{
    const char *none[] = {NULL};
    sg_trainer *trainer = NULL;
    sg_dataset *data = NULL;
    sg_batch    batch;
    int32_t    *out;
    size_t      num;
    float       value;
    char       *text;
    expect_refused(sg_trainer_open(NULL, 1, &trainer), "args is NULL");
    expect_refused(sg_trainer_open(none, 1, &trainer), "argument 0 is NULL");
    expect_refused(sg_trainer_open(none, 0, NULL), "out_trainer is NULL");
    expect_refused(sg_trainer_step(NULL, &batch), "trainer is NULL");
    expect_refused(sg_trainer_drop(NULL), "trainer is NULL");
    expect_refused(sg_trainer_backward(NULL), "trainer is NULL");
    expect_refused(sg_trainer_update(NULL, 0), "trainer is NULL");
    expect_refused(sg_trainer_result(NULL, NULL), "trainer is NULL");
    expect_refused(sg_trainer_losses(NULL, &batch, NULL, NULL, NULL), "trainer is NULL");
    expect_refused(sg_trainer_generate(NULL, NULL, 0, 1, NULL, &out, &num), "trainer is NULL");
    expect_refused(sg_trainer_get_info(NULL, NULL), "trainer is NULL");
    expect_refused(sg_trainer_plan(NULL, &text), "trainer is NULL");
    EXPECT_INT(sg_trainer_num_tensors(NULL), 0);
    expect_refused(sg_trainer_tensor(NULL, 0, NULL), "trainer is NULL");
    expect_refused(sg_trainer_weight(NULL, 0, &value, 1), "trainer is NULL");
    expect_refused(sg_trainer_gradient(NULL, 0, &value, 1), "trainer is NULL");
    expect_refused(sg_trainer_save(NULL, NULL), "trainer is NULL");
    expect_refused(sg_trainer_load(NULL, NULL), "trainer is NULL");
    expect_refused(sg_trainer_export_model(NULL, NULL), "trainer is NULL");
    expect_refused(sg_trainer_export_adapter(NULL, NULL), "trainer is NULL");
    expect_refused(sg_dataset_open(NULL, 2, SG_TRAIN, &data), "args is NULL");
    expect_refused(sg_dataset_open(none, 0, (sg_part)7, &data), "part 7");
    expect_refused(sg_dataset_next(NULL, &batch), "dataset is NULL");
    expect_refused(sg_trainer_step_data(NULL, NULL), "trainer is NULL");
    expect_refused(sg_dataset_seek(NULL, 0), "dataset is NULL");
    expect_refused(sg_dataset_get_info(NULL, NULL), "dataset is NULL");
    expect_refused(sg_run_open(NULL, 1, NULL), "out_run is NULL");
    expect_refused(sg_run_plan(NULL, NULL, &text), "run is NULL");
    expect_refused(sg_run_train(NULL, NULL), "run is NULL");
    expect_refused(sg_model_open(NULL, NULL, NULL, 0, NULL), "dir is NULL");
    expect_refused(sg_model_encode(NULL, NULL, 0, &out, &num), "model is NULL");
    expect_refused(sg_model_decode(NULL, NULL, 0, &text), "model is NULL");
    expect_refused(sg_model_losses(NULL, NULL, 2, NULL), "model is NULL");
    expect_refused(sg_model_generate(NULL, NULL, 0, 1, NULL, &out, &num), "model is NULL");
    sg_trainer_close(NULL);
    sg_dataset_close(NULL);
    sg_model_close(NULL);
    sg_run_close(NULL);
}

int main(int argc, char **argv)
{
    static const TestCase cases[] = {TEST(a_driven_run_has_the_bits_of_a_run),
                                     TEST(so_has_one_of_bf16_weights_and_padded_rows),
                                     TEST(so_has_one_in_fp8),
                                     TEST(so_has_one_of_several_ranks),
                                     TEST(so_has_one_of_adapters_on_several_ranks),
                                     TEST(ranks_tell_what_one_tells),
                                     TEST(logits_are_what_losses_follow_from),
                                     TEST(so_has_one_of_adapters_with_dropout),
                                     TEST(gradients_are_those_of_the_mean_loss),
                                     TEST(it_evaluates_before_the_first_step),
                                     TEST(accuracy_is_of_the_likeliest_tokens),
                                     TEST(loss_spread_is_of_token_losses),
                                     TEST(segments_keep_documents_apart),
                                     TEST(each_document_of_a_step_has_masks_of_its_own),
                                     TEST(it_generates_plans_and_exports),
                                     TEST(an_adapter_is_exported_alone_and_merged),
                                     TEST(an_export_that_fails_leaves_nothing),
                                     TEST(an_export_replaces_another),
                                     TEST(an_adapter_is_one_file),
                                     TEST(wrong_batches_are_refused),
                                     TEST(the_folder_of_another_run_is_left_alone),
                                     TEST(checkpoints_of_a_branch_that_was_left_are_set_aside),
                                     TEST(null_is_refused_everywhere)};
    char                  command[300];
    if (!mkdtemp(dir)) return 1;
    write_run_file();
    int status = test_run(cases, sizeof cases / sizeof cases[0], argc, argv);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command) != 0 || status;
}
