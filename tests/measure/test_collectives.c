/* Several devices that work together: collective ops over all of them, and that all ranks end when one fails. Always runs on the CPU; as a
 * part of test_cuda also over this machine's GPUs, at least two. */
#include "measure/doctor_ranks.h"
#include "test.h"

#ifdef FAMILY_CUDA
enum { MOST = 16, CASES = 43 };

static CrossBy cross_by; /* used by all ranks */

static Status open_device(int rank, Device **out)
{
    TRY(device_cuda_create(rank, out));
    (*out)->gather_by = (*out)->reduce_by = cross_by;
    return OK;
}

static int count_ranks(void)
{
    Device *device;
    int     count = 0;
    while (count < MOST && device_cuda_create(count, &device) == OK) {
        device->api->destroy(device);
        count++;
    }
    return count;
}
#else
enum { CASES = 42 };

static Status open_device(int rank, Device **out)
{
    (void)rank;
    return device_cpu_create(1, out);
}

static int count_ranks(void)
{
    return 4;
}
#endif

static void collectives_are_right_over_all_devices(void)
{
    int ranks = count_ranks();
    if (ranks < 2) SKIP("fewer than two devices");
    DoctorCounts counts = {0};
    EXPECT_OK(doctor_check_ranks(open_device, ranks, stdout, &counts));
    EXPECT_INT(counts.failed, 0);
    EXPECT_INT(counts.passed, CASES);
}

static void one_failure_ends_all_devices(void)
{
    int ranks = count_ranks();
    if (ranks < 2) SKIP("fewer than two devices");
    for (int turn = 0; turn < 3; turn++) EXPECT_OK(doctor_break_ranks(open_device, ranks));
}

static Status missing_device(int rank, Device **out)
{
    FAIL_IF(rank == 1, ERR_INVALID, "there is no GPU 1");
    return open_device(rank, out);
}

static void a_device_that_is_missing_ends_all(void)
{
    int          ranks = count_ranks();
    DoctorCounts counts = {0};
    if (ranks < 2) SKIP("fewer than two devices");
    EXPECT_FAILS(doctor_check_ranks(missing_device, ranks, stdout, &counts), ERR_INVALID, "rank 1: there is no GPU 1");
}

#ifdef FAMILY_CUDA
static void collectives_are_right_by_nccl(void)
{
    cross_by = CROSS_NCCL;
    collectives_are_right_over_all_devices();
    cross_by = CROSS_AUTO;
}

static void one_failure_ends_all_by_nccl(void)
{
    cross_by = CROSS_NCCL;
    one_failure_ends_all_devices();
    cross_by = CROSS_AUTO;
}

static void what_the_links_reach(void)
{
    int ranks = count_ranks();
    if (ranks < 2) SKIP("fewer than two devices");
    EXPECT_OK(doctor_measure_ranks(open_device, ranks, stdout));
    cross_by = CROSS_NCCL;
    EXPECT_OK(doctor_measure_ranks(open_device, ranks, stdout));
    cross_by = CROSS_AUTO;
}

TEST_MAIN(TEST(collectives_are_right_over_all_devices), TEST(collectives_are_right_by_nccl), TEST(one_failure_ends_all_devices),
          TEST(one_failure_ends_all_by_nccl), TEST(a_device_that_is_missing_ends_all), TEST(what_the_links_reach))
#else
TEST_MAIN(TEST(collectives_are_right_over_all_devices), TEST(one_failure_ends_all_devices), TEST(a_device_that_is_missing_ends_all))
#endif
