module {
  func.func @main(%arg0: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32> {dhlo.state = "count"}) {
    %0 = "dhlo.weight"() {name_ = "scale"} : () -> tensor<3xf32>
    %1 = "dhlo.state"() {name_ = "count"} : () -> tensor<3xf32>
    %2 = "dhlo.mul"(%arg0, %0) : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
    %3 = "dhlo.add"(%1, %arg0) : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
    return %2, %3 : tensor<3xf32>, tensor<3xf32>
  }
}
