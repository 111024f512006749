/* surogate doctor: describes this machine's GPU, checks that every kernel computes correctly on it, and measures its speed. */
#include "cli/cli.h"

#include "device/device.h"
#include "measure/doctor_ranks.h"

#include <limits.h>

static Status open_gpu(int rank, Device **out)
{
    return device_cuda_create(rank, out);
}

static Status open_gpu_of_nccl(int rank, Device **out)
{
    TRY(device_cuda_create(rank, out));
    (*out)->gather_by = (*out)->reduce_by = CROSS_NCCL;
    return OK;
}

/* Checks and measures all GPUs together if there are several: as a run would use them, then with NCCL. NCCL may be missing while copies
 * between GPUs work. */
static Status check_gpus(DoctorCounts *counts)
{
    enum { MOST = 16 };
    Device *device;
    int     gpus = 0;
    for (; gpus < MOST && device_cuda_create(gpus, &device) == OK; gpus++) device->api->destroy(device);
    status_clear();
    if (gpus < 2) return OK;
    TRY(doctor_measure_ranks(open_gpu, gpus, stdout));
    TRY(doctor_check_ranks(open_gpu, gpus, stdout, counts));
    Status status = doctor_measure_ranks(open_gpu_of_nccl, gpus, stdout);
    if (status == ERR_UNSUPPORTED) {
        printf("%s\n", status_message());
        status_clear();
        return OK;
    }
    TRY(status);
    return doctor_check_ranks(open_gpu_of_nccl, gpus, stdout, counts);
}

static Status check_gpu(Device *cuda, Device *cpu, const char *op, bool speed)
{
    char         text[2048];
    DoctorCounts counts;
    device_cuda_describe(cuda, text, sizeof text);
    printf("%s\n", text);
    fflush(stdout);
    TRY(doctor_check_ops(cuda, cpu, op, stdout, &counts));
    if (speed) {
        TRY(doctor_measure(cuda, stdout));
        TRY(device_cuda_links(cuda, text, sizeof text));
        printf("%s", text);
        TRY(check_gpus(&counts));
    }
    printf("%d kernels, %d cases passed, %d failed\n", counts.kernels, counts.passed, counts.failed);
    FAIL_IF(counts.failed, ERR_DEVICE, "%d cases failed: don't train on this GPU with this build", counts.failed);
    FAIL_IF(!counts.passed, ERR_INVALID, "no op, or no kernel of it, is called %s", op ? op : "so");
    return OK;
}

Status cmd_doctor(CliArgs *args)
{
    const char *op = NULL;
    bool        no_speed = false, done;
    int64_t     gpu = -1; /* -1: not given */
    const Flag  flags[] = {{"--op", FLAG_TEXT, &op, "NAME", "check only this op; NAME:KERNEL: only this kernel of it"},
                           {"--gpu", FLAG_INT, &gpu, "INDEX", "which GPU (0); without a driver that is an error"},
                           {"--no-speed", FLAG_SWITCH, &no_speed, NULL, "leave out the measurements"}};
    TRY(cli_parse(args, flags, 3, false, &done));
    if (done) return OK;
    TRY(cli_want_words(args, 0));
    if (gpu < 0 && !op && !device_has_driver()) {
        printf("there is no NVIDIA driver here (libcuda.so.1) and no GPU to check: runs use the CPU\n");
        return OK;
    }
    Device *cpu, *cuda;
    FAIL_IF(gpu > INT_MAX, ERR_INVALID, "--gpu %lld: expected a GPU's index", (long long)gpu);
    TRY(device_cuda_create(gpu < 0 ? 0 : (int)gpu, &cuda)); /* on failure the message says what is missing */
    Status status = device_cpu_create(0, &cpu);
    if (status == OK) {
        status = check_gpu(cuda, cpu, op, !no_speed && !op);
        cpu->api->destroy(cpu);
    }
    cuda->api->destroy(cuda);
    return status;
}
