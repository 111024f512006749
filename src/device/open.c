/* Which device a user's word means. */
#include "device/device.h"

#include "base/log.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* Every NVIDIA driver has libcuda.so.1. A machine without a GPU mostly lacks it; then a missing plugin isn't worth a message. */
bool device_has_driver(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (driver) dlclose(driver);
    return driver != NULL;
}

/* Settings of NCCL: no NVLink multicast, rings only, and for ranks of one host no network but the loopback. */
void device_prepare_ranks(bool is_local)
{
    if (!device_has_driver()) return;
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    setenv("NCCL_ALGO", "Ring", 0);
    if (is_local) setenv("NCCL_SOCKET_IFNAME", "lo", 0);
}

bool device_is(const Device *device, const char *name)
{
    return strcmp(device->api->name, name) == 0;
}

Status device_open(const char *name, int index, int threads, Device **out)
{
    if (strcmp(name, "cpu") == 0) return device_cpu_create(threads, out);
    if (strcmp(name, "cuda") == 0) return device_cuda_create(index, out);
    FAIL_IF(strcmp(name, "auto") != 0, ERR_INVALID, "device \"%s\"; expected auto, cpu or cuda", name);
    if (!device_has_driver()) return device_cpu_create(threads, out);
    Status status = device_cuda_create(index, out);
    if (status == OK || (index > 0 && status == ERR_INVALID)) return status; /* there are GPUs, but fewer than the caller counts on */
    log_info("running on the CPU: %s", status_message());
    status_clear();
    return device_cpu_create(threads, out);
}
