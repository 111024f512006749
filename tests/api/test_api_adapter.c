/* Training that goes on from an adapter with settings of every kind: losses, norms and tensors are those of PEFT in double precision
 * (tests/oracle/make_adapters.py). */
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

/* Batch `step` of the family's: what it points to stays. */
static const int32_t *ids_of(const StFile *file, const char *name, int step)
{
    return (const int32_t *)st_find(file, name)->data + step * TOKENS;
}

static sg_trainer *open_trainer(const char *output)
{
    char        text[300];
    sg_trainer *trainer = NULL;
    snprintf(text, sizeof text, "output_dir=%s/%s", dir, output);
    const char *args[] = {"model=" QWEN3,
                          "adapter=" FIXTURES "/qwen3",
                          text,
                          "model_dtype=fp32",
                          "sample_packing=true",
                          "per_device_train_batch_size=2",
                          "sequence_len=24",
                          "adamw_beta2=0.95",
                          "gradient_accumulation_steps=1",
                          "weight_decay=0.1",
                          "max_grad_norm=1",
                          "max_steps=10",
                          "device=cpu",
                          "threads=1",
                          "lora_dtype=fp32"};
    OKAY(sg_trainer_open(args, sizeof args / sizeof *args, &trainer));
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

static void expect_tensors(const char *folder, const StFile *expected)
{
    char    path[300];
    StFile *saved;
    size_t  compared = 0;
    snprintf(path, sizeof path, "%s/%s/adapter_model.safetensors", dir, folder);
    if (!(saved = open_file(path))) return;
    for (size_t i = 0; i < st_count(expected); i++) {
        const StTensor *want = st_at(expected, i), *got;
        if (strncmp(want->name, "after.", 6) != 0) continue;
        got = st_find(saved, want->name + 6);
        if (!got || got->numel != want->numel) {
            test_fail(__FILE__, __LINE__, "no %s as PEFT has it", want->name + 6);
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
    EXPECT_INT(compared, st_count(saved));
    st_close(saved);
}

static void it_goes_on_as_peft_does(void)
{
    StFile     *expected = open_file(FIXTURES "/expected.safetensors"), *batches = open_file(QWEN3 "/expected.safetensors");
    float       losses[STEPS], norms[STEPS], want[STEPS];
    char        path[300];
    sg_trainer *trainer = open_trainer("run");
    drive(trainer, batches, 0, 5, losses, norms);
    OKAY(sg_trainer_save(trainer, NULL));
    sg_trainer_close(trainer);
    trainer = open_trainer("run");
    snprintf(path, sizeof path, "%s/run/checkpoint-5", dir);
    OKAY(sg_trainer_load(trainer, path));
    drive(trainer, batches, 5, STEPS, losses, norms);
    OKAY(sg_trainer_save(trainer, NULL));
    floats_of(expected, "steps.loss", want, STEPS);
    EXPECT(max_error(losses, want, STEPS) < 1e-5);
    floats_of(expected, "steps.grad_norm", want, STEPS);
    EXPECT(max_error(norms, want, STEPS) < 1e-5);
    expect_tensors("run/checkpoint-10", expected);
    sg_trainer_close(trainer);
    st_close(expected);
    st_close(batches);
}

int main(int argc, char **argv)
{
    static const TestCase cases[] = {TEST(it_goes_on_as_peft_does)};
    char                  command[300];
    if (!mkdtemp(dir)) return 1;
    int status = test_run(cases, 1, argc, argv);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command) != 0 || status;
}
