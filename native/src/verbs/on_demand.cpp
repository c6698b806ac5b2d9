#include "verbs/on_demand.hpp"

#include <cstddef>

namespace collectives::verbs {

bool pages_on_demand(abi::Context* context) {
    if (context->extended != abi::is_extended) return false;
    // Newer versions of the library put members in front, so only distances from the end are known.
    auto* const end = reinterpret_cast<std::byte*>(context) + sizeof(abi::Context);
    const auto* const extended =
        reinterpret_cast<const abi::ExtendedContext*>(end - sizeof(abi::ExtendedContext));
    if (extended->size < sizeof(abi::ExtendedContext) || extended->query_device == nullptr) return false;
    abi::ExtendedAttributes attributes;
    if (extended->query_device(context, nullptr, &attributes, sizeof(attributes)) != 0) return false;
    const bool is_there = (attributes.on_demand & abi::on_demand_supported) != 0;
    return is_there && (attributes.on_demand_reliable & abi::on_demand_write) != 0;
}

}  // namespace collectives::verbs
