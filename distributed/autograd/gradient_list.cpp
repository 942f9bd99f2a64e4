// Gradients on the wire. The list begins with a byte per slot: absent, dense or row-wise. A row-wise gradient
// is sent as its rows and values, so its bytes depend on the look-ups. Its rows are checked when it is
// decoded, since an optimizer's step writes to these rows.
#include <weft/distributed/autograd/inner/gradient_list.h>

#include <weft/autograd/tape/inner/packed_rows.h>

namespace weft::dist_autograd::detail {
namespace {

enum class SlotForm : uint8_t { kAbsent, kDense, kRows };

}  // namespace

std::vector<int64_t> put_gradients(rpc::Encoder& out, const RecvNode& node, const GradList& gradients,
                                   bool recorded) {
  out.size(gradients.size());
  for (const Tensor& g : gradients)
    out.number(static_cast<uint8_t>(!g.defined()                   ? SlotForm::kAbsent
                                    : weft::detail::is_row_wise(g) ? SlotForm::kRows
                                                                   : SlotForm::kDense));
  std::vector<int64_t> slots;
  for (size_t slot = 0; slot < gradients.size(); ++slot) {
    const Tensor& g = gradients[slot];
    if (!g.defined()) continue;
    if (weft::detail::is_row_wise(g)) {
      rpc::Codec<RowGrad>::encode(out, weft::detail::unpack_rows(g), node.origins[slot]);
      slots.insert(slots.end(), 2, -1);
      continue;
    }
    out.place_on(node.origins[slot]);
    out.tensor(recorded ? g : g.detach());
    slots.push_back(static_cast<int64_t>(slot));
  }
  return slots;
}

GradientsOfSlots get_slot_gradients(rpc::Decoder& in) {
  std::vector<SlotForm> forms(in.size());
  for (SlotForm& form : forms) {
    form = static_cast<SlotForm>(in.number<uint8_t>());
    if (form > SlotForm::kRows) rpc::detail::malformed("a gradient of an unknown form");
  }
  GradientsOfSlots out;
  for (const SlotForm form : forms) {
    out.present.push_back(form != SlotForm::kAbsent);
    if (form == SlotForm::kDense) out.tensors.push_back(in.tensor());
    if (form != SlotForm::kRows) continue;
    const RowGrad g = in.get<RowGrad>();
    if (!g.defined()) rpc::detail::malformed("a row-wise gradient without values");
    out.tensors.push_back(weft::detail::pack_rows(g));
  }
  return out;
}

}  // namespace weft::dist_autograd::detail
