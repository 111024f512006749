/* A program written for an older header: trains a model that has its own loss and inputs, then a shipped model on its data set, and prints
 * the results. Guard bytes follow each structure that the library fills; the library must not write them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <surogate.h>

#define GUARDED(type) \
    struct { \
        type          value; \
        unsigned char guard[64]; \
    }
#define GUARD(of) memset((of).guard, 0xA5, sizeof(of).guard)
#define CHECK_GUARD(of) check_guard((of).guard, #of)

static void check(sg_status status)
{
    if (status == SG_OK) return;
    fprintf(stderr, "%s\n", sg_message());
    exit(sg_exit_code(status));
}

static void check_guard(const unsigned char *guard, const char *name)
{
    for (int i = 0; i < 64; i++)
        if (guard[i] != 0xA5) {
            fprintf(stderr, "the library wrote behind %s\n", name);
            exit(1);
        }
}

static void own_inputs(void)
{
    const char    *args[] = {"model=inputs",
                             "from_scratch=true",
                             "output_dir=own",
                             "sequence_len=4",
                             "per_device_train_batch_size=2",
                             "gradient_accumulation_steps=1",
                             "max_steps=3",
                             "device=cpu",
                             "model_dtype=fp32"};
    const int32_t  ids[8] = {1, 2, 3, 4, 5, 6, 7, 8}, targets[8] = {2, 3, 4, -100, 6, 7, 8, 9}, kind[8] = {0, 1, 2, 0, 1, 2, 0, 1};
    const float    volume[8] = {0.5f, 1, -1, 0, 0.25f, 2, 1, 0};
    const int32_t  verdict[8] = {0, -100, 1, 2, 0, 1, -100, 2};
    const sg_input inputs[] = {{"kind", kind, NULL}, {"volume", NULL, volume}, {"verdict", verdict, NULL}};
    const sg_batch batch = {.rows = 2, .cols = 4, .ids = ids, .targets = targets, .inputs = inputs, .num_inputs = 3};
    sg_trainer    *trainer;
    GUARDED(sg_step) step;
    GUARDED(sg_trainer_info) info;
    GUARDED(sg_tensor) tensor;
    float   losses[8];
    double  loss;
    int64_t trained;
    GUARD(step), GUARD(info), GUARD(tensor);
    check(sg_trainer_open(args, sizeof args / sizeof *args, &trainer));
    for (int i = 0; i < 3; i++) {
        check(sg_trainer_step(trainer, &batch));
        check(sg_trainer_update(trainer, 1e-2));
        check(sg_trainer_result(trainer, &step.value));
        printf("own step %lld loss %.5f norm %.5f trained %lld applied %d\n", (long long)step.value.step, step.value.loss, step.value.norm,
               (long long)step.value.trained, step.value.is_applied);
    }
    check(sg_trainer_losses(trainer, &batch, losses, &loss, &trained));
    printf("own losses %.5f of %lld, the last %.5f\n", loss, (long long)trained, losses[7]);
    check(sg_trainer_get_info(trainer, &info.value));
    check(sg_trainer_tensor(trainer, 0, &tensor.value));
    printf("own parameters %lld, the first %s of %lld\n", (long long)info.value.parameters, tensor.value.name,
           (long long)tensor.value.numel);
    CHECK_GUARD(step), CHECK_GUARD(info), CHECK_GUARD(tensor);
    sg_trainer_close(trainer);
}

static void data_set(void)
{
    const char *args[] = {"run.yaml", "output_dir=driven", "max_steps=3", "device=cpu"};
    sg_trainer *trainer;
    sg_dataset *data;
    sg_batch    batch;
    GUARDED(sg_dataset_info) info;
    GUARDED(sg_step) step;
    GUARD(info), GUARD(step);
    check(sg_trainer_open(args, 4, &trainer));
    check(sg_dataset_open(args, 4, SG_TRAIN, &data));
    check(sg_dataset_get_info(data, &info.value));
    for (int64_t s = 0; s < info.value.steps; s++) {
        for (int64_t m = 0; m < info.value.micro_batches; m++) {
            check(sg_dataset_next(data, &batch));
            check(sg_trainer_step(trainer, &batch));
        }
        check(sg_trainer_update(trainer, NAN));
        check(sg_trainer_result(trainer, &step.value));
        printf("step %lld loss %.5f accuracy %.4f\n", (long long)step.value.step, step.value.loss, step.value.accuracy);
    }
    CHECK_GUARD(info), CHECK_GUARD(step);
    check(sg_trainer_save(trainer, NULL));
    check(sg_trainer_export_model(trainer, "driven/model"));
    sg_dataset_close(data);
    sg_trainer_close(trainer);
}

static void use_model(void)
{
    sg_model     *model;
    sg_tokenizer *tokenizer;
    int32_t      *ids, *more;
    size_t        num, num_more;
    char         *text;
    float         losses[64];
    GUARDED(sg_tokenizer_info) info;
    GUARD(info);
    check(sg_model_open("driven/model", NULL, "cpu", 1, &model));
    check(sg_model_encode(model, "line 7 says", 11, &ids, &num));
    check(sg_model_losses(model, ids, num, losses));
    check(sg_model_generate(model, ids, num, 4, &(sg_sampling){0}, &more, &num_more));
    check(sg_model_decode(model, ids, num, &text));
    check(sg_tokenizer_open("model", &tokenizer));
    check(sg_tokenizer_get_info(tokenizer, &info.value));
    CHECK_GUARD(info);
    printf("model: %zu ids of \"%s\", loss %.5f, %zu more; vocabulary %d\n", num, text, (double)losses[0], num_more, info.value.vocab_size);
    sg_free(ids);
    sg_free(more);
    sg_free(text);
    sg_tokenizer_close(tokenizer);
    sg_model_close(model);
}

static void whole_run(void)
{
    const char *args[] = {"run.yaml", "output_dir=ran", "max_steps=2", "device=cpu", "generate_samples=0"};
    sg_run     *run;
    char       *json;
    GUARDED(sg_outcome) outcome;
    GUARD(outcome);
    check(sg_run_open(args, 5, &run));
    check(sg_run_plan(run, NULL, &json));
    check(sg_run_train(run, &outcome.value));
    CHECK_GUARD(outcome);
    printf("run: %lld steps, loss %.5f, plan %s\n", (long long)outcome.value.steps, outcome.value.loss, *json == '{' ? "told" : "missing");
    sg_free(json);
    sg_run_close(run);
}

int main(void)
{
    own_inputs();
    data_set();
    use_model();
    whole_run();
    return 0;
}
