// The memory of the stand-in driver (shared_memory_driver.cpp): files of the host that processes really share.
#pragma once

#include <cuda.h>

namespace shared_memory {

/// Makes a stream, whose number is never given again. Streams do at once what they are told.
CUresult stream_create(CUstream* stream, unsigned flags);
CUresult stream_destroy(CUstream stream);
CUresult stream_synchronize(CUstream stream);

CUresult allocate(CUdeviceptr* pointer, std::size_t bytes);
CUresult release(CUdeviceptr pointer);
CUresult host_allocate(void** memory, std::size_t bytes, unsigned flags);
CUresult host_free(void* memory);
CUresult host_device_pointer(CUdeviceptr* pointer, void* memory, unsigned flags);
CUresult pointer_attribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer);
CUresult address_range(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr pointer);

CUresult set_words(CUdeviceptr pointer, unsigned word, std::size_t count);
CUresult upload(CUdeviceptr pointer, const void* source, std::size_t bytes);
CUresult download(void* target, CUdeviceptr pointer, std::size_t bytes);

CUresult ipc_get(CUipcMemHandle* handle, CUdeviceptr pointer);
CUresult ipc_open(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned flags);
CUresult ipc_close(CUdeviceptr pointer);

CUresult granularity(std::size_t* bytes, const CUmemAllocationProp* properties, CUmemAllocationGranularity_flags);
CUresult create(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp* properties,
                unsigned long long flags);
CUresult retain(CUmemGenericAllocationHandle* handle, void* address);
CUresult properties_of(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle);
CUresult export_handle(void* target, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                       unsigned long long flags);
CUresult import_handle(CUmemGenericAllocationHandle* handle, void* carried, CUmemAllocationHandleType type);
CUresult release_handle(CUmemGenericAllocationHandle handle);
CUresult reserve(CUdeviceptr* pointer, std::size_t bytes, std::size_t alignment, CUdeviceptr wish,
                 unsigned long long flags);
CUresult free_addresses(CUdeviceptr pointer, std::size_t bytes);
CUresult map(CUdeviceptr pointer, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long flags);
CUresult unmap(CUdeviceptr pointer, std::size_t bytes);
CUresult set_access(CUdeviceptr pointer, std::size_t bytes, const CUmemAccessDesc* access, std::size_t count);

/// What belongs to the context goes with it.
void end_context();

}  // namespace shared_memory
