/* Training that continues from an adapter with settings of every kind, and adapters initialised from a part of the base. Compares losses,
 * norms and tensors with PEFT in double precision (tests/oracle/make_adapters.py). */
#include "surogate.h"

#include "files/safetensors.h"
#include "run/family.h"
#include "test.h"

#include <math.h>
#include <unistd.h>

#define FIXTURES "tests/fixtures/adapters"
#define QWEN3 "tests/fixtures/families/qwen3"

enum { STEPS = 10, TOKENS = FAMILY_TOKENS };

static char dir[] = "/tmp/surogate-api-adapter-XXXXXX";

static void expect_ok(sg_status status, int line)
{
    if (status != SG_OK) test_fail(__FILE__, line, "%s", sg_message());
}
#define OKAY(call) expect_ok(call, __LINE__)

static StFile *open_file(const char *path)
{
    StFile *file = NULL;
    EXPECT_OK(st_open(path, &file));
    return file;
}

static void floats_of(const StFile *file, const char *name, float *out, int64_t count)
{
    const StTensor *tensor = st_find(file, name);
    EXPECT(tensor && tensor->numel == count);
    if (tensor) EXPECT_OK(st_to_f32(tensor, 0, count, out));
}

/* Ids of batch `step` in the family's fixture. The memory belongs to `file`. */
static const int32_t *ids_of(const StFile *file, const char *name, int step)
{
    return (const int32_t *)st_find(file, name)->data + step * TOKENS;
}

/* more: settings of the adapter. */
static sg_trainer *open_trainer(const char *output, const char *const *more, size_t num_more)
{
    char        text[300];
    sg_trainer *trainer = NULL;
    snprintf(text, sizeof text, "output_dir=%s/%s", dir, output);
    const char *args[24] = {"model=" QWEN3,     "threads=1",           text,
                            "model_dtype=fp32", "sample_packing=true", "per_device_train_batch_size=2",
                            "sequence_len=24",  "adamw_beta2=0.95",    "gradient_accumulation_steps=1",
                            "weight_decay=0.1", "max_grad_norm=1",     "max_steps=10",
                            "device=cpu",       "save_total_limit=0",  "lora_dtype=fp32"};
    size_t      count = 0;
    while (args[count]) count++;
    memcpy(args + count, more, num_more * sizeof *more);
    OKAY(sg_trainer_open(args, count + num_more, &trainer));
    return trainer;
}

static void drive(sg_trainer *trainer, const StFile *batches, int from, int end, float *losses, float *norms)
{
    sg_step step;
    for (int s = from; s < end; s++) {
        sg_batch batch = {.rows = FAMILY_B,
                          .cols = FAMILY_T,
                          .ids = ids_of(batches, "steps.ids", s),
                          .targets = ids_of(batches, "steps.labels", s),
                          .segments = ids_of(batches, "steps.doc_start", s),
                          .positions = ids_of(batches, "steps.position_ids", s)};
        OKAY(sg_trainer_step(trainer, &batch));
        OKAY(sg_trainer_update(trainer, 1e-3));
        OKAY(sg_trainer_result(trainer, &step));
        losses[s] = (float)step.loss;
        norms[s] = (float)step.norm;
    }
}

/* Compares the tensors of a file with those tensors of `expected` whose names begin with a prefix. Returns their number. */
static size_t expect_tensors(const char *file, const StFile *expected, const char *prefix)
{
    char    path[300];
    StFile *saved;
    size_t  compared = 0, skip = strlen(prefix);
    snprintf(path, sizeof path, "%s/%s.safetensors", dir, file);
    if (!(saved = open_file(path))) return 0;
    for (size_t i = 0; i < st_count(expected); i++) {
        const StTensor *want = st_at(expected, i), *got;
        if (strncmp(want->name, prefix, skip) != 0) continue;
        got = st_find(saved, want->name + skip);
        if (!got || got->numel != want->numel) {
            test_fail(__FILE__, __LINE__, "no %s as PEFT has it", want->name + skip);
            continue;
        }
        float a[1024], b[1024];
        EXPECT(want->numel <= 1024);
        EXPECT_OK(st_to_f32(want, 0, want->numel, a));
        EXPECT_OK(st_to_f32(got, 0, got->numel, b));
        double error = max_error(b, a, want->numel);
        if (!(error < 1e-5)) test_fail(__FILE__, __LINE__, "%s is off by %g", want->name, error);
        compared++;
    }
    st_close(saved);
    return compared;
}

static void it_goes_on_as_peft_does(void)
{
    StFile     *expected = open_file(FIXTURES "/expected.safetensors"), *batches = open_file(QWEN3 "/expected.safetensors");
    float       losses[STEPS], norms[STEPS], want[STEPS];
    char        path[300];
    const char *on[] = {"adapter=" FIXTURES "/qwen3"};
    sg_trainer *trainer = open_trainer("run", on, 1);
    drive(trainer, batches, 0, 5, losses, norms);
    OKAY(sg_trainer_save(trainer, NULL));
    sg_trainer_close(trainer);
    trainer = open_trainer("run", on, 1);
    snprintf(path, sizeof path, "%s/run/checkpoint-5", dir);
    OKAY(sg_trainer_load(trainer, path));
    drive(trainer, batches, 5, STEPS, losses, norms);
    OKAY(sg_trainer_save(trainer, NULL));
    floats_of(expected, "steps.loss", want, STEPS);
    EXPECT(max_error(losses, want, STEPS) < 1e-5);
    floats_of(expected, "steps.grad_norm", want, STEPS);
    EXPECT(max_error(norms, want, STEPS) < 1e-5);
    EXPECT_INT(expect_tensors("run/checkpoint-10/adapter_model", expected, "after."), 18);
    sg_trainer_close(trainer);
    st_close(expected);
    st_close(batches);
}

static void expect_same_file(const char *a, const char *b)
{
    char command[700];
    snprintf(command, sizeof command, "cmp %s/%s %s/%s", dir, a, dir, b);
    if (system(command) != 0) test_fail(__FILE__, __LINE__, "%s and %s differ", a, b);
}

/* Opens a trainer with the settings of make_adapters.py. */
static sg_trainer *open_beginning(const char *init, const char *output)
{
    char        text[32];
    const char *more[] = {text,
                          "lora=true",
                          "lora_rank=3",
                          "lora_alpha=9",
                          "lora_use_rslora=true",
                          "lora_rank_pattern={down_proj: 5}",
                          "lora_alpha_pattern={v_proj: 2}"};
    snprintf(text, sizeof text, "lora_init=%s", init);
    return open_trainer(output, more, 7);
}

static void expect_numbers(const StFile *expected, const char *init, const char *what, const float *got)
{
    char  name[64];
    float want[STEPS];
    snprintf(name, sizeof name, "%s.%s", init, what);
    floats_of(expected, name, want, STEPS);
    double error = max_error(got, want, STEPS);
    if (!(error < 1e-5)) test_fail(__FILE__, __LINE__, "%s is off by %g", name, error);
}

/* Makes ten steps with adapters that are initialised by `init`, then repeats the last five from the checkpoint of step 5. */
static void expect_beginning(const char *init)
{
    StFile     *expected = open_file(FIXTURES "/expected.safetensors"), *batches = open_file(QWEN3 "/expected.safetensors");
    float       losses[STEPS], norms[STEPS];
    char        name[64], path[300];
    sg_trainer *trainer = open_beginning(init, "begins");
    drive(trainer, batches, 0, 5, losses, norms);
    OKAY(sg_trainer_save(trainer, NULL));
    drive(trainer, batches, 5, STEPS, losses, norms);
    OKAY(sg_trainer_save(trainer, NULL));
    snprintf(path, sizeof path, "%s/merged-%s", dir, init);
    OKAY(sg_trainer_export_model(trainer, path));
    sg_trainer_close(trainer);
    expect_numbers(expected, init, "loss", losses);
    expect_numbers(expected, init, "grad_norm", norms);
    snprintf(name, sizeof name, "merged-%s/model", init);
    snprintf(path, sizeof path, "%s.merged.", init);
    EXPECT_INT(expect_tensors(name, expected, path), 14);
    trainer = open_beginning(init, "again");
    snprintf(path, sizeof path, "%s/begins/checkpoint-5", dir);
    OKAY(sg_trainer_load(trainer, path));
    drive(trainer, batches, 5, STEPS, losses, norms);
    OKAY(sg_trainer_save(trainer, NULL));
    sg_trainer_close(trainer);
    expect_same_file("begins/checkpoint-10/adapter_model.safetensors", "again/checkpoint-10/adapter_model.safetensors");
    expect_same_file("begins/checkpoint-10/optimizer.safetensors", "again/checkpoint-10/optimizer.safetensors");
    st_close(expected);
    st_close(batches);
    snprintf(path, sizeof path, "rm -rf %s/begins %s/again", dir, dir);
    EXPECT_INT(system(path), 0);
}

static void it_begins_with_pissa(void)
{
    expect_beginning("pissa");
}

static void it_begins_with_olora(void)
{
    expect_beginning("olora");
}

int main(int argc, char **argv)
{
    static const TestCase cases[] = {TEST(it_goes_on_as_peft_does), TEST(it_begins_with_pissa), TEST(it_begins_with_olora)};
    char                  command[300];
    if (!mkdtemp(dir)) return 1;
    int status = test_run(cases, 3, argc, argv);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command) != 0 || status;
}
