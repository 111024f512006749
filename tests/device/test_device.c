/* Devices cpu and null: memory, sticky errors, facts. */
#include "device/device.h"

#include "base/pool.h"
#include "test.h"

static void memory_is_aligned_and_zero(void)
{
    static const size_t sizes[] = {0, 1, 255, 100000, 5 << 20};
    Device             *device;
    EXPECT_OK(device_cpu_create(2, &device));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        unsigned char *memory;
        EXPECT_OK(device->api->alloc(device, SPACE_DEVICE, sizes[i], (void **)&memory));
        EXPECT((uintptr_t)memory % 256 == 0);
        for (size_t k = 0; k < sizes[i]; k++)
            if (memory[k]) test_fail(__FILE__, __LINE__, "byte %zu of %zu isn't 0", k, sizes[i]);
        device->api->free(device, SPACE_DEVICE, memory);
    }
    void *memory;
    EXPECT_FAILS(device->api->alloc(device, SPACE_DEVICE, SIZE_MAX - 100, &memory), ERR_NO_FIT, "cannot allocate");
    device->api->destroy(device);
}

static Status count_up(const KernelArgs *args)
{
    CHECK(pool_num_workers(args->pool) == 3);
    ++*(int *)args->workspace;
    return OK;
}

static Status break_down(const KernelArgs *args)
{
    (void)args;
    FAIL(ERR_INVALID, "token 7 is none");
}

static void launches_run_in_order_and_the_first_error_stays(void)
{
    Device     *device;
    int         first = 0, second = 0;
    DeviceFacts facts;
    EXPECT_OK(device_cpu_create(3, &device));
    Launch good = {.kernel = {count_up, "count", 0}, .args.workspace = &first}, bad = {.kernel = {break_down, "break", 0}};
    Launch launches[] = {good, good, bad, {.kernel = {count_up, "count", 0}, .args.workspace = &second}};
    EXPECT_OK(device->api->run(device, launches, 2, NULL));
    EXPECT_INT(first, 2);
    EXPECT_FAILS(device->api->run(device, launches, 4, NULL), ERR_INVALID, "break: token 7 is none");
    EXPECT_INT(first, 4);
    EXPECT_INT(second, 0);
    status_clear();
    EXPECT_FAILS(device->api->run(device, launches, 1, NULL), ERR_INVALID, "token 7 is none");
    EXPECT_FAILS(device->api->sync(device), ERR_INVALID, "token 7 is none");
    EXPECT_FAILS(device->api->upload(device, &first, &second, sizeof first), ERR_INVALID, "token 7 is none");
    EXPECT_INT(first, 4);
    EXPECT_OK(device->api->facts(device, &facts));
    EXPECT_INT(facts.num_workers, 3);
    EXPECT(facts.memory_bytes > 0 && facts.name[0]);
    device->api->destroy(device);
}

/* Counts the allocations of the CPU device. */
static int num_allocations;

void *aligned_alloc(size_t alignment, size_t bytes)
{
    void *memory;
    num_allocations++;
    return posix_memalign(&memory, alignment, bytes) ? NULL : memory;
}

static void the_peak_is_measured(void)
{
    Device *device;
    double  flops = 0, bytes = 0;
    EXPECT_OK(device_cpu_create(1, &device));
    EXPECT_OK(device_cpu_measure_peak(device, &flops, &bytes));
    EXPECT(flops > 1e8 && bytes > 1e7);
    int before = num_allocations;
    EXPECT(before > 0);
    EXPECT_OK(device_cpu_measure_peak(device, &flops, &bytes)); /* a run measures at each evaluation */
    EXPECT_INT(num_allocations, before);
    device->api->destroy(device);
}

static void null_knows_gpus_and_runs_nothing(void)
{
    Device     *device;
    DeviceFacts facts;
    char        names[512], *rest = names, *name;
    snprintf(names, sizeof names, "%s", device_null_names());
    while ((name = strtok_r(rest, ", ", &rest))) {
        EXPECT_OK(device_null_create(name, &device));
        EXPECT_OK(device->api->facts(device, &facts));
        EXPECT(facts.gemm_flops[DT_BF16] > facts.gemm_flops[DT_F32] && facts.bandwidth > 1e11 && facts.memory_bytes > (int64_t)6 << 30);
        double fp8 = facts.gemm_flops[DT_E4M3], fp4 = facts.gemm_flops[DT_E2M1];
        EXPECT(fp8 == facts.gemm_flops[DT_E5M2] && (fp8 == 0 || fp8 > 1.9 * facts.gemm_flops[DT_BF16]) && (fp4 == 0 || fp4 > 1.9 * fp8));
        void *memory;
        EXPECT_FAILS(device->api->alloc(device, SPACE_DEVICE, 1, &memory), ERR_UNSUPPORTED, facts.name);
        EXPECT_FAILS(device->api->run(device, NULL, 0, NULL), ERR_UNSUPPORTED, "runs nothing");
        device->api->destroy(device);
    }
    EXPECT_FAILS(device_null_create("h2000", &device), ERR_INVALID, "known are b200, h200");
    EXPECT_FAILS(device_null_create("h2000", &device), ERR_INVALID, "gpu_memory=16GB");
    EXPECT_FAILS(device_null_create("T4", &device), ERR_UNSUPPORTED, "below 8.0");
    const char *const called[] = {"rtx4090", "4090", "RTX 4090", "NVIDIA GeForce RTX 4090", "rtx-4090", "rtx3060", "rtx4070", "H100-PCIe"};
    for (size_t i = 0; i < sizeof called / sizeof called[0]; i++) {
        EXPECT_OK(device_null_create(called[i], &device));
        EXPECT_OK(device->api->facts(device, &facts));
        EXPECT_STR(facts.name, i < 5    ? "NVIDIA GeForce RTX 4090"
                               : i == 5 ? "NVIDIA GeForce RTX 3060"
                               : i == 6 ? "NVIDIA GeForce RTX 4070"
                                        : "NVIDIA H100 PCIe");
        device->api->destroy(device);
    }
    EXPECT_OK(device_null_create(NULL, &device));
    EXPECT_OK(device->api->facts(device, &facts));
    EXPECT(facts.num_workers >= 1);
    device->api->destroy(device);
}

TEST_MAIN(TEST(memory_is_aligned_and_zero), TEST(launches_run_in_order_and_the_first_error_stays), TEST(the_peak_is_measured),
          TEST(null_knows_gpus_and_runs_nothing))
