// A stand-in for libcuda.so.1 on a machine without a GPU. cuDNN compiles kernels for a device that is only
// described to it, but loads them for its plans. So programs are loaded here, whatever they are, and all
// other functions say that there is no device.
extern "C" {

static char loaded;  // every program and kernel
int cuLibraryLoadData(void** to) { return *to = &loaded, 0; }
int cuLibraryGetKernel(void** to) { return *to = &loaded, 0; }
int cuKernelGetFunction(void** to) { return *to = &loaded, 0; }
int cuLibraryUnload() { return 0; }
int cuKernelSetAttribute() { return 0; }

#define NO_DEVICE(name) \
  int name() { return 100; /* CUDA_ERROR_NO_DEVICE */ }

NO_DEVICE(cuCtxGetCurrent)
NO_DEVICE(cuCtxGetDevice)
NO_DEVICE(cuCtxGetLimit)
NO_DEVICE(cuCtxPopCurrent)
NO_DEVICE(cuCtxPushCurrent)
NO_DEVICE(cuDeviceGet)
NO_DEVICE(cuDeviceGetAttribute)
NO_DEVICE(cuDeviceGetCount)
NO_DEVICE(cuDevicePrimaryCtxRelease)
NO_DEVICE(cuDevicePrimaryCtxReset)
NO_DEVICE(cuDevicePrimaryCtxRetain)
NO_DEVICE(cuDriverGetVersion)
NO_DEVICE(cuFuncGetAttribute)
NO_DEVICE(cuFuncSetAttribute)
NO_DEVICE(cuGetErrorName)
NO_DEVICE(cuGetErrorString)
NO_DEVICE(cuGetProcAddress)
NO_DEVICE(cuInit)
NO_DEVICE(cuKernelGetAttribute)
NO_DEVICE(cuLaunchCooperativeKernel)
NO_DEVICE(cuLaunchKernel)
NO_DEVICE(cuLaunchKernelEx)
NO_DEVICE(cuLibraryLoadFromFile)
NO_DEVICE(cuLinkAddData)
NO_DEVICE(cuLinkAddData_v2)
NO_DEVICE(cuLinkAddFile_v2)
NO_DEVICE(cuLinkComplete)
NO_DEVICE(cuLinkCreate)
NO_DEVICE(cuLinkCreate_v2)
NO_DEVICE(cuLinkDestroy)
NO_DEVICE(cuMemcpyDtoH_v2)
NO_DEVICE(cuModuleGetFunction)
NO_DEVICE(cuModuleGetGlobal_v2)
NO_DEVICE(cuModuleLoadData)
NO_DEVICE(cuModuleLoadDataEx)
NO_DEVICE(cuModuleLoadFatBinary)
NO_DEVICE(cuModuleUnload)
NO_DEVICE(cuOccupancyMaxActiveBlocksPerMultiprocessor)
NO_DEVICE(cuOccupancyMaxPotentialClusterSize)
NO_DEVICE(cuStreamGetCtx)
NO_DEVICE(cuStreamSynchronize)
NO_DEVICE(cuTensorMapEncodeTiled)
}
