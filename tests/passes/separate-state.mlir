module {
  // The weight that the second result is the new content of becomes state; the other stays a weight.
  func.func @main(%x: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32> {dhlo.state = "count"}) {
    %a = "dhlo.weight"() {name_ = "scale"} : () -> tensor<3xf32>
    %b = "dhlo.weight"() {name_ = "count"} : () -> tensor<3xf32>
    %y = "dhlo.mul"(%x, %a) : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
    %new = "dhlo.add"(%b, %x) : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
    return %y, %new : tensor<3xf32>, tensor<3xf32>
  }
}
