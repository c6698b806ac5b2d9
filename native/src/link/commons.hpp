// Objects that several parts of one communicator share, at most one object of each type.
//
// Invariant: the first part that asks for an object makes it. It lives as long as the communicator, or longer
// if somebody keeps a reference. Calls come from one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <typeindex>

namespace collectives {

class Commons {
  public:
    // The object of that type, made by `make` if there is none yet.
    template <typename T, typename Make>
    std::shared_ptr<T> get(Make make) {
        std::shared_ptr<void>& place = objects_[std::type_index(typeid(T))];
        if (!place) place = std::shared_ptr<T>(make());
        return std::static_pointer_cast<T>(place);
    }
    // The object of that type, or null if no part has asked `get` for it.
    template <typename T>
    T* find() const {
        const auto place = objects_.find(std::type_index(typeid(T)));
        return place == objects_.end() ? nullptr : static_cast<T*>(place->second.get());
    }
    void clear() { objects_.clear(); }

  private:
    std::map<std::type_index, std::shared_ptr<void>> objects_;
};

}  // namespace collectives
