/* Uses only the public header, as a binding does: trains, plans, evaluates and generates with a tiny model. The test makes the model by
 * training from scratch. */
#include "surogate.h"

#include "test.h"

#include <pthread.h>
#include <locale.h>
#include <unistd.h>

static char dir[] = "/tmp/surogate-api-XXXXXX";

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
    for (int i = 0; i < 200; i++) fprintf(text, "To be, or not to be, that is question number %d.\n", i);
    fprintf(run,
            "model: examples/shakespeare\nfrom_scratch: true\noutput_dir: %s/out\ndatasets: [{path: %s/text.txt, type: text}]\n"
            "sequence_len: 32\nper_device_train_batch_size: 4\ngradient_accumulation_steps: 1\nmax_steps: 5\nmodel_dtype: fp32\n",
            dir, dir);
    fclose(text);
    fclose(run);
}

static void a_run_plans_trains_and_finishes_once(void)
{
    const char *args[] = {under("run.yaml"), "learning_rate=1e-3"};
    sg_run     *run;
    char       *json;
    sg_outcome  outcome;
    write_run_file();
    EXPECT_INT(sg_run_open(args, 2, &run), SG_OK);
    EXPECT_INT(sg_run_plan(run, "h200", &json), SG_OK);
    EXPECT_CONTAINS(json, "\"total_bytes\"");
    sg_free(json);
    EXPECT_INT(sg_run_train(run, &outcome), SG_OK);
    EXPECT_INT(outcome.steps, 5);
    EXPECT(outcome.loss > 0 && outcome.loss < 5);
    EXPECT_INT(sg_run_train(run, &outcome), SG_OK);
    EXPECT(outcome.already_finished);
    EXPECT_INT(sg_run_train(run, NULL), SG_OK);
    sg_run_close(run);
}

static void a_model_encodes_evaluates_and_goes_on(void)
{
    sg_model   *model;
    int32_t    *ids, *more;
    size_t      num, num_more;
    char       *text;
    float       losses[64];
    sg_sampling greedy = {0};
    const char  question[] = "To be, or not";
    int         status = sg_model_open(under("out"), NULL, "cpu", 1, &model);
    if (status != SG_OK) test_fail(__FILE__, __LINE__, "%s", sg_message());
    if (status != SG_OK) return;
    EXPECT_INT(sg_model_encode(model, question, strlen(question), &ids, &num), SG_OK);
    EXPECT_INT(num, strlen(question)); /* one token per character */
    EXPECT_INT(sg_model_decode(model, ids, num, &text), SG_OK);
    EXPECT_STR(text, question);
    sg_free(text);
    EXPECT_INT(sg_model_decode_text(model, ids, num, &text, &num_more), SG_OK);
    EXPECT_STR(text, question);
    EXPECT_INT(num_more, strlen(question));
    EXPECT_INT(sg_model_losses(model, ids, num, losses), SG_OK);
    for (size_t i = 0; i + 1 < num; i++) EXPECT(losses[i] > 0 && losses[i] < 10);
    char   row[256], *scores, want[64];
    size_t scores_len;
    snprintf(row, sizeof row, "{\"text\": \"%s\"}", question);
    EXPECT_INT(sg_model_score(model, row, strlen(row), &scores, &scores_len), SG_OK);
    EXPECT_INT(scores_len, strlen(scores));
    snprintf(want, sizeof want, "\"logprobs\":[null,%.9g,", -(double)losses[0]);
    EXPECT(strstr(scores, want) != NULL);
    sg_free(scores);
    EXPECT_INT(sg_model_score(model, "[1]", 3, &scores, NULL), SG_INVALID);
    EXPECT_INT(sg_model_generate(model, ids, num, 8, &greedy, &more, &num_more), SG_OK);
    EXPECT(num_more <= 8);
    EXPECT_INT(sg_model_generate(model, ids, 0, 8, &greedy, &more, &num_more), SG_INVALID);
    EXPECT_CONTAINS(sg_message(), "at least one id");
    sg_free(text);
    sg_free(ids);
    sg_free(more);
    sg_model_close(model);
}

/* Each row names its adapter, or none. A row's text doesn't depend on the adapters of the other rows. */
static void rows_choose_an_adapter(void)
{
    static const char rows[] = "{\"ids\": [3, 4, 5], \"adapter\": \"b\"}\n{\"ids\": [3, 4, 5]}\n{\"ids\": [3, 4, 5], \"adapter\": \"a\"}\n";
    static const char *const plain[] = {"{\"ids\": [3, 4, 5]}\n{\"ids\": [3, 4, 5]}\n{\"ids\": [3, 4, 5]}\n"};
    static const char *const names[] = {"a", "b"}, *dirs[] = {"tests/fixtures/families/qwen3/adapter", "tests/fixtures/row_adapters/qwen3"};
    sg_generation            settings = {.size = sizeof settings,
                                         .max_tokens = 12,
                                         .logprobs = true,
                                         .ignore_eos = true,
                                         .adapter_names = names,
                                         .adapter_dirs = dirs,
                                         .num_adapters = 2},
                  without = settings;
    sg_model *model;
    char     *mixed, *alone[3];
    without.num_adapters = 0;
    EXPECT_INT(sg_model_open("tests/fixtures/families/qwen3", NULL, "cpu", 1, &model), SG_OK);
    for (int call = 0; call < 2; call++) {
        EXPECT_INT(sg_model_generate_rows(model, plain[0], strlen(plain[0]), &without, &alone[1], NULL), SG_OK);
        EXPECT_INT(sg_model_generate_rows(model, rows, strlen(rows), &settings, &mixed, NULL), SG_OK);
        for (int a = 0; a < 2; a++) {
            sg_model *adapted;
            EXPECT_INT(sg_model_open("tests/fixtures/families/qwen3", dirs[a], "cpu", 1, &adapted), SG_OK);
            EXPECT_INT(sg_model_generate_rows(adapted, plain[0], strlen(plain[0]), &without, &alone[a ? 0 : 2], NULL), SG_OK);
            EXPECT_INT(sg_model_generate_rows(adapted, rows, strlen(rows), &settings, &mixed, NULL), SG_INVALID);
            EXPECT_CONTAINS(sg_message(), "the model was opened with the adapter");
            sg_model_close(adapted);
        }
        const char *line = mixed;
        for (int i = 0; i < 3; i++) {
            const char *want = alone[i];
            for (int k = 0; k < i; k++) want = strchr(want, '\n') + 1;
            size_t len = (size_t)(strchr(want, '\n') + 1 - want);
            EXPECT(strncmp(line, want, len) == 0);
            line += len;
            sg_free(alone[i]);
        }
        sg_free(mixed);
        /* Calls other than generate_rows use the model without adapters. */
        static const int32_t     ids[] = {3, 4, 5};
        static const sg_sampling greedy = {0};
        int32_t                 *base, *again;
        size_t                   num;
        EXPECT_INT(sg_model_score(model, "{\"ids\": [1, 2]}", 15, &mixed, NULL), SG_OK);
        sg_free(mixed);
        EXPECT_INT(sg_model_generate(model, ids, 3, 12, &greedy, &base, &num), SG_OK);
        EXPECT_INT(sg_model_generate_rows(model, rows, strlen(rows), &settings, &mixed, NULL), SG_OK);
        EXPECT_INT(sg_model_generate(model, ids, 3, 12, &greedy, &again, &num), SG_OK);
        EXPECT(num > 0 && memcmp(base, again, num * sizeof *base) == 0);
        sg_free(mixed), sg_free(base), sg_free(again);
    }
    sg_model_close(model);
}

/* With weights of fewer bits the losses differ, but not by much. Formats that don't exist are refused. */
static void a_model_is_kept_in_few_bits(void)
{
    static const int32_t ids[] = {3, 4, 5, 6, 7, 8};
    sg_model_options     options = {.size = sizeof options, .device = "cpu", .threads = 1, .dtype = "fp32"};
    float                plain[5], few[5];
    sg_model            *model;
    EXPECT_INT(sg_model_open_as(under("out"), &options, &model), SG_OK);
    EXPECT_INT(sg_model_losses(model, ids, 6, plain), SG_OK);
    sg_model_close(model);
    for (int k = 0; k < 2; k++) {
        options.quantization = k ? "int8" : "none";
        EXPECT_INT(sg_model_open_as(under("out"), &options, &model), SG_OK);
        EXPECT_INT(sg_model_losses(model, ids, 6, few), SG_OK);
        EXPECT((memcmp(plain, few, sizeof plain) == 0) == !k);
        for (int i = 0; i < 5; i++) EXPECT_NEAR(few[i], plain[i], 0.05);
        sg_model_close(model);
    }
    options.quantization = "int3";
    EXPECT_INT(sg_model_open_as(under("out"), &options, &model), SG_INVALID);
    EXPECT_CONTAINS(sg_message(), "there is no format int3 that weights are quantised to; expected none, nf4, ");
    options.size = 3;
    EXPECT_INT(sg_model_open_as(under("out"), &options, &model), SG_INVALID);
    EXPECT_CONTAINS(sg_message(), "options.size is 3; expected sizeof(sg_model_options)");
    EXPECT_INT(sg_model_open_as(under("out"), NULL, &model), SG_INVALID);
    EXPECT_CONTAINS(sg_message(), "options is NULL");
}

/* Rows in, lines out. A row's text is the same after other calls and beside other rows. */
static void a_model_makes_texts_of_many_prompts(void)
{
    static const char rows[] = "{\"prompt\": \"To be\", \"id\": 7}\n{\"ids\": [3, 4, 5]}\n";
    static const char talk[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}";
    const char       *stop = "";
    sg_model         *model;
    sg_generation     settings = {
            .size = sizeof settings, .sampling = {.temperature = 1, .seed = 3}, .n = 2, .max_tokens = 4, .logprobs = true, .ignore_eos = true};
    char  *lines, *again;
    size_t len;
    EXPECT_INT(sg_model_open(under("out"), NULL, "cpu", 1, &model), SG_OK);
    EXPECT_INT(sg_model_generate_rows(model, rows, strlen(rows), &settings, &lines, &len), SG_OK);
    EXPECT_INT(len, strlen(lines));
    EXPECT(strstr(lines, "{\"index\":0,\"sample\":0,\"id\":7,\"text\":\"") == lines);
    EXPECT(strstr(lines, "\n{\"index\":0,\"sample\":1,\"id\":7,") && strstr(lines, "\n{\"index\":1,\"sample\":1,\"text\":"));
    EXPECT(strstr(lines, "],\"stop_reason\":\"length\",\"logprobs\":[{\"id\":") != NULL);
    EXPECT_INT(sg_model_score(model, "{\"ids\": [1, 2]}", 15, &again, NULL), SG_OK);
    sg_free(again);
    for (settings.rows = 1; settings.rows <= 3; settings.rows += 2) {
        EXPECT_INT(sg_model_generate_rows(model, rows, strlen(rows), &settings, &again, NULL), SG_OK);
        EXPECT_STR(again, lines);
        sg_free(again);
    }
    sg_free(lines);
#define EXPECT_REFUSED(status, says, given, ...) \
    do { \
        sg_generation bad = settings; \
        __VA_ARGS__; \
        EXPECT_INT(sg_model_generate_rows(model, given, strlen(given), &bad, &lines, NULL), status); \
        EXPECT_CONTAINS(sg_message(), says); \
    } while (0)
    EXPECT_REFUSED(SG_INVALID, "settings.size is 3; expected sizeof(sg_generation)", rows, bad.size = 3);
    EXPECT_REFUSED(SG_INVALID, "settings.size is", rows, bad.size = sizeof bad + 8);
    EXPECT_REFUSED(SG_INVALID, "n -1; expected a number of samples", rows, bad.n = -1);
    EXPECT_REFUSED(SG_INVALID, "top_logprobs 2 without logprobs", rows, bad.top_logprobs = 2, bad.logprobs = false);
    EXPECT_REFUSED(SG_INVALID, "stops[0] is empty", rows, bad.stops = &stop, bad.num_stops = 1);
    EXPECT_REFUSED(SG_INVALID, "biases is NULL", rows, bad.bias_ids = (const int32_t[]){1}, bad.num_biases = 1);
    EXPECT_REFUSED(SG_INVALID, "bias_ids has 1 twice", rows, bad.bias_ids = (const int32_t[]){1, 1}, bad.biases = (const float[]){1, 1},
                   bad.num_biases = 2);
    EXPECT_REFUSED(SG_INVALID, "rows has no rows", "", bad.n = 1);
    EXPECT_REFUSED(SG_NOT_FOUND, "has no chat template", talk, bad.n = 1);
    EXPECT_REFUSED(SG_INVALID, "rows:1: there is no adapter a: none was given by name", "{\"ids\": [1], \"adapter\": \"a\"}", bad.n = 1);
    EXPECT_REFUSED(SG_INVALID, "adapter_names is NULL", rows, bad.num_adapters = 1);
    EXPECT_INT(sg_model_generate_rows(model, rows, strlen(rows), NULL, &lines, NULL), SG_INVALID);
    EXPECT_INT(sg_model_generate_rows(NULL, rows, strlen(rows), &settings, &lines, NULL), SG_INVALID);
    sg_model_close(model);
}

/* Trains a second base, and an adapter of it. Opening that adapter over the first base would print a warning. */
static void train_into(const char *folder, const char *more)
{
    char        output[300];
    const char *args[] = {under("run.yaml"), output, more};
    sg_run     *run;
    sg_outcome  outcome;
    snprintf(output, sizeof output, "output_dir=%s", under(folder));
    EXPECT_INT(sg_run_open(args, 3, &run), SG_OK);
    EXPECT_INT(sg_run_train(run, &outcome), SG_OK);
    sg_run_close(run);
}

static void a_run_writes_its_samples(void)
{
    char        line[4096], output[300];
    const char *args[] = {
        under("run.yaml"), "validation_split_ratio=0.2", "generate_samples=2", "sample_max_tokens=8", "sequence_len=16", output};
    sg_run    *run;
    sg_outcome outcome;
    int        num_samples = 0;
    snprintf(output, sizeof output, "output_dir=%s", under("sampled"));
    EXPECT_INT(sg_run_open(args, 6, &run), SG_OK);
    EXPECT_INT(sg_run_train(run, &outcome), SG_OK);
    sg_run_close(run);
    FILE *metrics = fopen(under("sampled/metrics.jsonl"), "r");
    EXPECT(metrics != NULL);
    while (metrics && fgets(line, sizeof line, metrics)) num_samples += strstr(line, "\"log\":\"sample\"") != NULL;
    if (metrics) fclose(metrics);
    EXPECT_INT(num_samples, 2);
}

static void only_training_prints(void)
{
    const char *args[] = {under("run.yaml"), "warmup_ratio=0.1", "lr=1e-3", "wandb_project=null"};
    char        model_key[300], path[300], *json;
    const char *lora_args[] = {under("run.yaml"), "lora=true", "lora_rank=2", "from_scratch=false", model_key, path};
    sg_run     *run;
    sg_outcome  outcome;
    sg_model   *model;
    train_into("other", "seed=7");
    snprintf(model_key, sizeof model_key, "model=%s", under("other"));
    snprintf(path, sizeof path, "output_dir=%s", under("adapter"));
    EXPECT_INT(sg_run_open(lora_args, 6, &run), SG_OK);
    EXPECT_INT(sg_run_train(run, &outcome), SG_OK);
    sg_run_close(run);

    int   saved = dup(2);
    FILE *file = freopen(under("stderr"), "w", stderr);
    EXPECT(file != NULL);
    EXPECT_INT(sg_run_open(args, 3, &run), SG_OK);
    EXPECT_INT(sg_run_plan(run, NULL, &json), SG_OK);
    sg_free(json);
    sg_run_close(run);
    EXPECT_INT(sg_model_open(under("out"), under("adapter"), "auto", 1, &model), SG_OK);
    float   losses[2];
    int32_t ids[] = {1, 2, 3}, *more;
    size_t  num_more;
    EXPECT_INT(sg_model_losses(model, ids, 3, losses), SG_OK);
    EXPECT_INT(sg_model_generate(model, ids, 3, 2, &(sg_sampling){0}, &more, &num_more), SG_OK);
    sg_free(more);
    sg_model_close(model);
    EXPECT_INT(ftell(stderr), 0);
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
}

typedef struct LongRun {
    sg_run   *run;
    sg_status status;
    pthread_t thread;
} LongRun;

static void *train_long(void *context)
{
    LongRun *run = context;
    run->status = sg_run_train(run->run, NULL);
    return NULL;
}

/* sg_interrupt ends the calls that are running, even if another call begins right after it. The later call isn't interrupted. */
static void an_interruption_ends_what_runs_and_nothing_else(void)
{
    char output[300], log[300];
    snprintf(output, sizeof output, "output_dir=%s", under("long"));
    snprintf(log, sizeof log, "%s/long/metrics.jsonl", dir);
    const char *args[] = {under("run.yaml"), output, "max_steps=20000", "resume_from_checkpoint=auto"};
    LongRun     run = {0};
    sg_dataset *data;
    sg_run     *short_run;
    write_run_file();
    EXPECT_INT(sg_run_open(args, 4, &run.run), SG_OK);
    EXPECT_INT(pthread_create(&run.thread, NULL, train_long, &run), 0);
    for (int i = 0; i < 3000 && access(log, F_OK) != 0; i++) usleep(10000);
    sg_interrupt();
    EXPECT_INT(sg_dataset_open(args, 4, SG_TRAIN, &data), SG_OK);
    const char *of_short[] = {under("run.yaml"), "max_steps=3", "output_dir=", "resume_from_checkpoint=false"};
    char        folder[300];
    snprintf(folder, sizeof folder, "output_dir=%s", under("short"));
    of_short[2] = folder;
    EXPECT_INT(sg_run_open(of_short, 4, &short_run), SG_OK);
    EXPECT_INT(sg_run_train(short_run, NULL), SG_OK);
    pthread_join(run.thread, NULL);
    EXPECT_INT(run.status, SG_INTERRUPTED);
    sg_run_close(short_run);
    sg_run_close(run.run);
    sg_dataset_close(data);
}

static void a_conversation_is_rendered_and_masked(void)
{
    static const char source[] = "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}\n{% endgeneration %}"
                                 "{% else %}{{ m.content }}\n{% endif %}{% endfor %}";
    static const char talk[] = "[{\"role\": \"user\", \"content\": \"who\"}, {\"role\": \"assistant\", \"content\": \"I\"}]";
    sg_tokenizer     *tokenizer = NULL;
    sg_chat_template *tmpl = NULL;
    sg_tokenizer_info info;
    char             *text;
    int32_t          *ids, wrong = 1 << 20;
    uint8_t          *mask;
    size_t            num, len;
    EXPECT_INT(sg_tokenizer_open("examples/shakespeare", &tokenizer), SG_OK);
    EXPECT_INT(sg_chat_template_open(NULL, source, &tmpl), SG_OK);
    EXPECT_INT(sg_chat_template_render(tmpl, talk, false, &text), SG_OK);
    EXPECT_STR(text, "who\nI\n");
    sg_free(text);
    EXPECT_INT(sg_chat_template_render_text(tmpl, "[{\"role\": \"user\", \"content\": \"a\\u0000b\"}]", false, &text, &len), SG_OK);
    EXPECT_INT(len, 4);
    EXPECT(memcmp(text, "a\0b\n", 5) == 0);
    sg_free(text);
    EXPECT_INT(sg_chat_template_encode(tmpl, tokenizer, talk, SG_TRAIN_ASSISTANT, &ids, &mask, &num), SG_OK);
    EXPECT_INT(num, 6);
    for (size_t i = 0; i < num; i++) EXPECT_INT(mask[i], i >= 4);
    EXPECT_INT(sg_tokenizer_decode(tokenizer, ids, num, false, &text, &len), SG_OK);
    EXPECT_STR(text, "who\nI\n");
    EXPECT_INT(len, 6);
    sg_free(text);
    sg_free(ids);
    sg_free(mask);
    EXPECT_INT(sg_tokenizer_get_info(tokenizer, &info), SG_OK);
    EXPECT(info.vocab_size > 60);
    EXPECT_INT(sg_tokenizer_decode(tokenizer, &wrong, 1, false, &text, NULL), SG_INVALID);
    static const char *const bad[] = {
        "", "7", "{}", "[7]", "[{}]", "[[]]", "[{\"role\": 1}]", "{\"messages\": {}}", "[", "[]", "{\"messages\": [], \"tools\": 3}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        EXPECT(sg_chat_template_encode(tmpl, tokenizer, bad[i], SG_TRAIN_ALL, &ids, &mask, &num) != SG_OK);
    EXPECT_INT(sg_chat_template_encode(tmpl, tokenizer, talk, (sg_train_on)9, &ids, &mask, &num), SG_INVALID);
    EXPECT_INT(sg_chat_template_encode(tmpl, NULL, talk, SG_TRAIN_ALL, &ids, &mask, &num), SG_INVALID);
    EXPECT_INT(sg_chat_template_render(NULL, talk, false, &text), SG_INVALID);
    EXPECT_INT(sg_chat_template_render(tmpl, NULL, false, &text), SG_INVALID);
    EXPECT_INT(sg_chat_template_open(NULL, NULL, &tmpl), SG_INVALID);
    EXPECT_INT(sg_tokenizer_encode(NULL, NULL, 0, true, &ids, &num), SG_INVALID);
    sg_chat_template_close(tmpl);
    sg_tokenizer_close(tokenizer);
}

/* Switches the process to a German locale: decimal commas, German month names. False: no such locale can be made here. */
static bool use_german(void)
{
    char command[512], number[8];
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 2> /dev/null", dir);
    int ignored = system(command); /* setlocale below shows whether it worked */
    (void)ignored;
    setenv("LOCPATH", dir, 1);
    if (!setlocale(LC_ALL, "de_DE.UTF-8")) return false;
    snprintf(number, sizeof number, "%g", 1.5);
    return strcmp(number, "1,5") == 0;
}

static char *render_numbers(void)
{
    static const char source[] = "{{ 1.5*2 }} {{ 0.1 + 0.25 }} {{ messages[0].content }} {{ messages[0].price * 2 }} {{ '2.5'|float }} "
                                 "{{ {'x': 2.75}|tojson }} {{ '%.2f'|format(1.25) }} {{ 2.345|round(1) }} {{ strftime_now('%A') }}",
                      talk[] = "[{\"role\": \"user\", \"content\": \"hi\", \"price\": 3.25}]";
    sg_chat_template *tmpl = NULL;
    char             *text = NULL;
    EXPECT_INT(sg_chat_template_open(NULL, source, &tmpl), SG_OK);
    EXPECT_INT(sg_chat_template_render(tmpl, talk, false, &text), SG_OK);
    sg_chat_template_close(tmpl);
    return text ? text : strdup("");
}

static char *plan_with(const char *rate)
{
    const char *args[] = {under("run.yaml"), rate, "warmup_ratio=0.25", "weight_decay=0.125"};
    sg_run     *run = NULL;
    char       *json = NULL;
    EXPECT_INT(sg_run_open(args, 4, &run), SG_OK);
    EXPECT_INT(sg_run_plan(run, "h200", &json), SG_OK);
    sg_run_close(run);
    return json ? json : strdup("");
}

/* Trains on two ranks, which are threads, and reads the run's log without its times. */
static void train_and_read(const char *name, char *out, size_t size)
{
    const char *folder = under(name), *args[] = {under("run.yaml"), "learning_rate=1.5e-3", "gpus=2", "device=cpu", NULL};
    char        output[300], line[1024];
    sg_run     *run = NULL;
    snprintf(output, sizeof output, "output_dir=%s", folder);
    args[4] = output;
    EXPECT_INT(sg_run_open(args, 5, &run), SG_OK);
    EXPECT_INT(sg_run_train(run, NULL), SG_OK);
    sg_run_close(run);
    snprintf(output, sizeof output, "%s/metrics.jsonl", folder);
    FILE  *file = fopen(output, "r");
    size_t len = 0;
    out[0] = 0;
    while (file && fgets(line, sizeof line, file)) {
        const char *loss = strstr(line, "\"loss\":"), *rest = loss ? strstr(loss, ",\"ranks") : NULL; /* times follow */
        if (rest) len += (size_t)snprintf(out + len, size - len, "%.*s\n", (int)(rest - loss), loss);
    }
    if (file) fclose(file);
}

static void the_callers_locale_changes_nothing(void)
{
    static char before[4096], after[4096];
    char        number[8];
    write_run_file();
    char *text = render_numbers(), *plan = plan_with("learning_rate=1.5e-3");
    train_and_read("plain", before, sizeof before);
    if (!use_german()) SKIP("no locale with a decimal comma can be made here");
    char *german_text = render_numbers(), *german_plan = plan_with("learning_rate=1.5e-3");
    EXPECT_STR(german_text, text);
    EXPECT_CONTAINS(german_text, "3.0 0.35 hi 6.5 2.5 {\"x\": 2.75} 1.25 2.3 ");
    EXPECT_STR(german_plan, plan);
    train_and_read("german", after, sizeof after);
    EXPECT_STR(after, before);
    snprintf(number, sizeof number, "%g", 1.5);
    EXPECT_STR(number, "1,5"); /* the caller's locale is still in effect */
    free(german_text);
    free(german_plan);
    setlocale(LC_ALL, "C");
    free(text);
    free(plan);
}

static void mistakes_have_messages(void)
{
    const char *args[] = {"max_stepz=3"};
    sg_run     *run = NULL;
    sg_model   *model = NULL;
    EXPECT_INT(sg_run_open(args, 1, &run), SG_INVALID);
    EXPECT_CONTAINS(sg_message(), "max_steps");
    EXPECT_INT(sg_exit_code(SG_INVALID), 2);
    EXPECT(sg_model_open("no/such/folder", NULL, "cpu", 1, &model) != SG_OK);
    EXPECT_CONTAINS(sg_message(), "no/such/folder");
    EXPECT(model == NULL);
    EXPECT(strlen(sg_version()) >= 5);
}

int main(int argc, char **argv)
{
    static const TestCase cases[] = {TEST(a_run_plans_trains_and_finishes_once),
                                     TEST(a_model_encodes_evaluates_and_goes_on),
                                     TEST(a_model_is_kept_in_few_bits),
                                     TEST(a_model_makes_texts_of_many_prompts),
                                     TEST(rows_choose_an_adapter),
                                     TEST(a_run_writes_its_samples),
                                     TEST(only_training_prints),
                                     TEST(a_conversation_is_rendered_and_masked),
                                     TEST(an_interruption_ends_what_runs_and_nothing_else),
                                     TEST(the_callers_locale_changes_nothing),
                                     TEST(mistakes_have_messages)};
    char                  command[300];
    if (!mkdtemp(dir)) return 1;
    int status = test_run(cases, sizeof cases / sizeof cases[0], argc, argv);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command) != 0 || status;
}
