/* Every combination of model_dtype, matmul_dtype, gradient_dtype and master_dtype (for adapters: lora_dtype). Losses and gradient norms of
 * three steps are compared with tests/oracle/make_dtype_knobs.py, which rounds where docs/precision.md says. A refusal must name the keys
 * that don't go together. */
#include "base/json.h"
#include "files/file.h"
#include "surogate.h"

#include "test.h"

#include <math.h>
#include <string.h>

#define FOLDER "tests/fixtures/families/qwen3"
enum { ROWS = 2, COLS = 24, VOCAB = 61, STEPS = 3, NUM_TRAINED = 68, NUM_REFUSED = 4 };
static const double RATE = 0.01;

/* A row of the fixture. */
typedef struct Row {
    bool        lora;
    const char *model, *matmul, *gradient, *kept;
    double      losses[STEPS], norms[STEPS];
    bool        trains;
} Row;

static bool is(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

static void read_numbers(const JsonValue *row, const char *key, double *out)
{
    const JsonValue *list = json_get(row, key);
    for (size_t i = 0; list && i < STEPS; i++) out[i] = list->items[i].number;
}

static Row read_row(const JsonValue *value)
{
    Row row = {.trains = json_get(value, "losses") != NULL};
    EXPECT(json_get_bool(value, "lora", &row.lora) && json_get_str(value, "model", &row.model) &&
           json_get_str(value, "matmul", &row.matmul) && json_get_str(value, "gradient", &row.gradient) &&
           json_get_str(value, "kept", &row.kept));
    read_numbers(value, "losses", row.losses);
    read_numbers(value, "norms", row.norms);
    return row;
}

static sg_status open_row(const Row *row, sg_trainer **out)
{
    char        keys[4][64];
    const char *args[] = {"model=" FOLDER,
                          "sequence_len=24",
                          "per_device_train_batch_size=2",
                          "gradient_accumulation_steps=1",
                          "weight_decay=0",
                          "adamw_epsilon=0.1",
                          "max_grad_norm=0",
                          "fusion=none",
                          "device=cpu",
                          "threads=1",
                          keys[0],
                          keys[1],
                          keys[2],
                          keys[3],
                          "adapter=" FOLDER "/adapter"};
    size_t      count = sizeof args / sizeof *args;
    snprintf(keys[0], sizeof keys[0], "model_dtype=%s", row->model);
    snprintf(keys[1], sizeof keys[1], "matmul_dtype=%s", row->matmul);
    snprintf(keys[2], sizeof keys[2], "gradient_dtype=%s", row->gradient);
    snprintf(keys[3], sizeof keys[3], "%s=%s", row->lora ? "lora_dtype" : "master_dtype", row->kept);
    return sg_trainer_open(args, row->lora ? count : count - 1, out);
}

/* Largest allowed relative difference from the oracle. If nothing is rounded, it is fp32's own error. Otherwise a value halfway between two
 * values of a format may be rounded up here and down in the oracle. The weights accumulate such differences over the steps, and bf16
 * weights are updated stochastically. */
static double most_of_loss(const Row *row, int step)
{
    if (is(row->model, "fp32") && is(row->matmul, "fp32") && is(row->gradient, "fp32") && is(row->kept, "fp32")) return 1e-6;
    return step ? 5e-3 : row->lora ? 3e-5 : 1e-6;
}

static double most_of_norm(const Row *row)
{
    bool wide = is(row->model, "fp32");
    if (wide && is(row->matmul, "fp32") && is(row->gradient, "fp32") && is(row->kept, "fp32")) return 2e-6;
    if (is(row->gradient, "e5m2")) return wide ? 2e-3 : 1.5e-2;
    return wide ? 4e-4 : is(row->gradient, "fp32") ? 1e-3 : 3e-3;
}

static void expect_near(const char *name, const char *what, int step, double got, double want, double most)
{
    if (!(fabs(got - want) <= most * want))
        test_fail(__FILE__, __LINE__, "%s: %s of step %d is %.9g, the oracle's %.9g: %.2g of it away, at most %.2g was expected", name,
                  what, step + 1, got, want, fabs(got / want - 1), most);
}

static const char *name_of(const Row *row)
{
    static char name[160];
    snprintf(name, sizeof name, "model_dtype %s, matmul_dtype %s, gradient_dtype %s, %s %s", row->model, row->matmul, row->gradient,
             row->lora ? "lora_dtype" : "master_dtype", row->kept);
    return name;
}

static int32_t id_at(int row, int col)
{
    return (row * 31 + col * 7 + col * col % 11) % VOCAB;
}

static void train(const Row *row)
{
    int32_t     ids[ROWS * COLS], targets[ROWS * COLS];
    sg_batch    batch = {.rows = ROWS, .cols = COLS, .ids = ids, .targets = targets};
    sg_trainer *trainer = NULL;
    sg_step     step;
    const char *name = name_of(row);
    for (int i = 0; i < ROWS * COLS; i++) {
        ids[i] = id_at(i / COLS, i % COLS);
        targets[i] = id_at(i / COLS, i % COLS + 1);
    }
    if (open_row(row, &trainer) != SG_OK) test_fail(__FILE__, __LINE__, "%s: %s", name, sg_message());
    for (int s = 0; s < STEPS; s++) {
        bool ok = sg_trainer_step(trainer, &batch) == SG_OK && sg_trainer_update(trainer, RATE) == SG_OK &&
                  sg_trainer_result(trainer, &step) == SG_OK;
        if (!ok) test_fail(__FILE__, __LINE__, "%s: %s", name, sg_message());
        expect_near(name, "the loss", s, step.loss, row->losses[s], most_of_loss(row, s));
        if (s == 0) expect_near(name, "the gradient norm", s, step.norm, row->norms[s], most_of_norm(row));
    }
    sg_trainer_close(trainer);
}

/* The message must name gradient_dtype and the matmul_dtype that it doesn't go with. */
static void refuse(const Row *row)
{
    sg_trainer *trainer = NULL;
    if (open_row(row, &trainer) == SG_OK || !strstr(sg_message(), "gradient_dtype e5m2") || !strstr(sg_message(), "matmul_dtype fp32"))
        test_fail(__FILE__, __LINE__, "%s: expected to be refused, naming matmul_dtype fp32; found %s", name_of(row), sg_message());
    sg_trainer_close(trainer);
}

static void every_pairing_is_as_the_oracle_says(void)
{
    Arena     arena = {0};
    Str       text;
    JsonValue rows;
    int       trained = 0, refused = 0;
    EXPECT_OK(file_read(&arena, "tests/fixtures/dtype_knobs.json", 1 << 20, &text));
    EXPECT_OK(json_parse(&arena, "dtype_knobs.json", text.data, text.len, &rows));
    for (size_t i = 0; i < rows.count; i++) {
        Row row = read_row(&rows.items[i]);
        if (row.trains)
            train(&row);
        else
            refuse(&row);
        trained += row.trains;
        refused += !row.trains;
    }
    EXPECT_INT(trained, NUM_TRAINED);
    EXPECT_INT(refused, NUM_REFUSED);
    arena_deinit(&arena);
}

int main(int argc, char **argv)
{
    static const TestCase cases[] = {TEST(every_pairing_is_as_the_oracle_says)};
    return test_run(cases, (int)(sizeof cases / sizeof cases[0]), argc, argv);
}
