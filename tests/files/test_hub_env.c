/* Names of repositories, settings from the environment, and checksums: parts that need no hub. */
#include "files/checksum.h"
#include "files/file.h"
#include "files/hub.h"

#include "test.h"

#include <unistd.h>

#define SMALL "{\"model_type\": \"tiny\"}\n"
#define SMALL_GIT "b6ded5f340daa14ef0b286ae424ea6eef34544b1" /* printed by git hash-object */

static void repository_names(void)
{
    static const char *const good[] = {"org/name", "Qwen/Qwen3-0.6B", "a/b", "meta-llama/Llama-3.1-8B", "o_1/x.y-z"};
    static const char *const bad[] = {"",
                                      "name",
                                      "/name",
                                      "org/",
                                      "a/b/c",
                                      "./model",
                                      "../model",
                                      "out/..",
                                      "org/na--me",
                                      "org/na..me",
                                      "org/-x",
                                      "org/x-",
                                      "org/a b",
                                      "data/train.jsonl",
                                      "data/x.parquet",
                                      "weights/m.safetensors",
                                      "org/\xc3\xa9"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!hub_is_repo_id(good[i])) test_fail(__FILE__, __LINE__, "%s is refused", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (hub_is_repo_id(bad[i])) test_fail(__FILE__, __LINE__, "%s is taken", bad[i]);
    StrBuf     dir = {0};
    HubOptions options = {.offline = true, .cache = (char *)"/tmp", .endpoint = (char *)"http://127.0.0.1:1"};
    EXPECT_FAILS(hub_pull(&options, HUB_MODEL, "../x", NULL, NULL, &dir), ERR_INVALID, "isn't the name of a repository; expected ORG/NAME");
    EXPECT_FAILS(hub_pull(&options, HUB_MODEL, "a/b", "../../x", NULL, &dir), ERR_INVALID, "isn't the name of a revision");
}

static void clear_environment(void)
{
    static const char *const names[] = {"HF_HOME",
                                        "HF_HUB_CACHE",
                                        "HUGGINGFACE_HUB_CACHE",
                                        "HF_TOKEN",
                                        "HUGGING_FACE_HUB_TOKEN",
                                        "HF_TOKEN_PATH",
                                        "HF_ENDPOINT",
                                        "HF_HUB_OFFLINE",
                                        "TRANSFORMERS_OFFLINE",
                                        "HF_DATASETS_OFFLINE",
                                        "XDG_CACHE_HOME",
                                        "HF_HUB_DOWNLOAD_TIMEOUT",
                                        "HF_HUB_ETAG_TIMEOUT",
                                        "http_proxy",
                                        "all_proxy",
                                        "ALL_PROXY"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
}

static void expect_cache(const char *variable, const char *value, const char *want)
{
    HubOptions options;
    if (variable) setenv(variable, value, 1);
    EXPECT_OK(hub_options_init(&options));
    EXPECT_STR(options.cache, want);
    hub_options_deinit(&options);
}

static void the_environment_is_read_as_elsewhere(void)
{
    char       dir[] = "/tmp/surogate_home_XXXXXX", path[128];
    HubOptions options;
    if (!mkdtemp(dir)) abort();
    setenv("HOME", "/home/me", 1);
    expect_cache(NULL, NULL, "/home/me/.cache/huggingface/hub");
    expect_cache("XDG_CACHE_HOME", "/xdg", "/xdg/huggingface/hub");
    expect_cache("HF_HOME", dir, (snprintf(path, sizeof path, "%s/hub", dir), path));
    expect_cache("HUGGINGFACE_HUB_CACHE", "~/old", "/home/me/old");
    expect_cache("HF_HUB_CACHE", "/new", "/new");
    snprintf(path, sizeof path, "%s/token", dir);
    EXPECT_OK(file_write_atomic(path, "hf_file\n", 8));
    setenv("HF_ENDPOINT", "https://mirror.example//", 1);
    setenv("HF_HUB_DOWNLOAD_TIMEOUT", "77", 1);
    EXPECT_OK(hub_options_init(&options));
    EXPECT_STR(options.token, "hf_file");
    EXPECT_STR(options.endpoint, "https://mirror.example");
    EXPECT_INT(options.timeout_s, 77);
    EXPECT_INT(options.etag_timeout_s, 10);
    EXPECT(!options.offline);
    hub_options_deinit(&options);
    setenv("HUGGING_FACE_HUB_TOKEN", "hf_old", 1);
    EXPECT_OK(hub_options_init(&options));
    EXPECT_STR(options.token, "hf_old");
    hub_options_deinit(&options);
    setenv("HF_TOKEN", " hf_env\r\n", 1);
    EXPECT_OK(hub_options_init(&options));
    EXPECT_STR(options.token, "hf_env");
    hub_options_deinit(&options);
    setenv("HF_TOKEN", "hf\r\nX-Evil: 1", 1);
    EXPECT_FAILS(hub_options_init(&options), ERR_INVALID, "HF_TOKEN: a token has printable letters");
    unsetenv("HF_TOKEN");
    setenv("HF_HUB_ETAG_TIMEOUT", "soon", 1);
    EXPECT_FAILS(hub_options_init(&options), ERR_INVALID, "HF_HUB_ETAG_TIMEOUT=soon: expected whole seconds");
    unsetenv("HF_HUB_ETAG_TIMEOUT");
    setenv("HF_ENDPOINT", "ftp://x", 1);
    EXPECT_FAILS(hub_options_init(&options), ERR_INVALID, "HF_ENDPOINT=ftp://x: expected https://HOST");
    clear_environment();
    EXPECT_OK(file_remove_tree(dir));
}

static void a_path_that_is_there_is_itself(void)
{
    StrBuf path = {0};
    setenv("HF_HUB_OFFLINE", "1", 1);
    setenv("HF_HUB_CACHE", "/tmp/surogate_none", 1);
    EXPECT_OK(hub_local_path(HUB_MODEL, "/tmp", &path));
    EXPECT_STR(strbuf_cstr(&path), "/tmp");
    EXPECT_FAILS(hub_local_path(HUB_MODEL, "/tmp/surogate/not/there", &path), ERR_NOT_FOUND,
                 "no such file or folder, nor is it the name (ORG/NAME) of a repository");
    EXPECT_FAILS(hub_local_path(HUB_DATASET, "not/there@v2", &path), ERR_NOT_FOUND,
                 "not/there@v2: no such file or folder, and as a name on the hub: not/there (revision v2) isn't in the cache");
    clear_environment();
    strbuf_deinit(&path);
}

static void checksums_are_those_of_git_and_sha256sum(void)
{
    char   path[] = "/tmp/surogate_sum_XXXXXX", hex[CHECKSUM_TEXT];
    int    fd = mkstemp(path);
    Status status = fd < 0 ? ERR_IO : file_write_atomic(path, SMALL, strlen(SMALL));
    close(fd);
    EXPECT_OK(status);
    status = checksum_file(path, CHECKSUM_GIT_BLOB, hex);
    if (status == ERR_UNSUPPORTED) SKIP("libcrypto isn't installed");
    EXPECT_STR(hex, SMALL_GIT);
    EXPECT_OK(file_write_atomic(path, "", 0));
    EXPECT_OK(checksum_file(path, CHECKSUM_SHA256, hex));
    EXPECT_STR(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    unlink(path);
    EXPECT_FAILS(checksum_file(path, CHECKSUM_SHA256, hex), ERR_NOT_FOUND, "cannot open");
}

int main(int argc, char **argv)
{
    static const TestCase cases[] = {TEST(repository_names), TEST(the_environment_is_read_as_elsewhere),
                                     TEST(a_path_that_is_there_is_itself), TEST(checksums_are_those_of_git_and_sha256sum)};
    clear_environment();
    return test_run(cases, (int)(sizeof cases / sizeof cases[0]), argc, argv);
}
